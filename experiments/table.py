"""Print the results in ``experiments/results`` as Markdown tables, with the paper's number beside ours.

    python experiments/table.py          all tables, as they stand in docs/reproduction.md

``python experiments/document.py`` puts them there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grouping import Record, Table, by_length, grouped, mean
from table_conv4 import ablation, dimensions, robustness
from table_costs import costs, ratios
from table_questions import open_questions

RESULTS = Path(__file__).parent / "results"

PAPER = {  # test accuracy in percent
    "conv4": 75.16,
    "conv4-pcn": 77.25,
    "resnet20": 91.03,
    "resnet110": 92.94,
    "wide_resnet20": 93.60,
    "wide_resnet20-pcn0": 93.52,
    "wide_resnet20-pcn1": 93.23,
    "wide_resnet20-pcn2": 92.50,
}


def table(name: str, results: Path = RESULTS) -> str:
    """Return the tables of one results file."""
    found: dict[str, Any] = json.loads((results / f"{name}.json").read_text())
    gpu, torch = found["hardware"]["gpu"] or "CPU", found["versions"]["torch"]
    made = [make(found["records"]) for make in TABLES[name]]
    bodies = [as_markdown(head, rows) for head, rows in made if rows]
    return "\n\n".join([f"`experiments/{name}.py`, {gpu}, torch {torch}:", *bodies])


def as_markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def networks(records: list[Record]) -> Table:
    """A row for each network and length, from the largest down."""
    found = sorted(by_length(records), key=lambda each: -each[1][0]["trainable_params"])
    head = ["network", "trainable", "total", "runs", "test accuracy (%)", "lowest to highest", "paper"]
    return head, [row(length, runs) for length, runs in found]


def row(length: str, records: list[Record]) -> list[str]:
    first = records[0]
    accuracies = [record["test_accuracy"] for record in records]
    spread = f"{min(accuracies):.2f} to {max(accuracies):.2f}" if len(accuracies) > 1 else ""
    paper = PAPER.get(first["network"])
    return [
        first["network"] + length,
        f"{first['trainable_params']:,}",
        f"{first['total_params']:,}",
        str(len(records)),
        f"{statistics.mean(accuracies):.2f}",
        spread,
        "" if paper is None else f"{paper:.2f}",
    ]


def widths(records: list[Record]) -> Table:
    """A row for each width of the hidden layer."""
    rows = [
        [str(width), str(len(runs)), f"{mean(runs, 'effective_dimensions'):.1f}", f"{mean(runs, 'test_accuracy'):.2f}"]
        for width, runs in sorted(grouped(records, "width").items())
    ]
    return ["hidden nodes", "runs", "effective dimensions", "test accuracy (%)"], rows


def recalibration(records: list[Record]) -> Table:
    """A row for each way to treat batch norm's running statistics."""
    names = ("validation_before_switch", "validation_after_switch", "test_accuracy")
    rows = [
        [runs[0]["network"] + length, str(len(runs)), *(f"{mean(runs, name):.2f}" for name in names)]
        for length, runs in by_length(records)
    ]
    return ["running statistics", "runs", "validation before", "right after (%)", "test at the end (%)"], rows


def lagging(records: list[Record]) -> Table:
    """A row for each way to look at the network, and for a narrower one."""
    rows = [
        [
            runs[0]["network"] + length,
            str(len(runs)),
            f"{mean(runs, 'trainable_params'):,.0f}",
            f"{mean(runs, 'train_loss'):.3f}",
            *_accuracies(runs),
        ]
        for length, runs in by_length(records)
    ]
    return ["network", "runs", "trainable", "loss of the last epoch", "test accuracy (%)", "of each seed"], rows


def _accuracies(runs: list[Record]) -> list[str]:
    found = [run["test_accuracy"] for run in sorted(runs, key=lambda run: run["seed"])]
    return [f"{statistics.mean(found):.2f}", ", ".join(f"{each:.2f}" for each in found)]


TABLES: dict[str, tuple[Callable[[list[Record]], Table], ...]] = {
    "cifar10_conv4": (networks,),
    "cifar10_resnets": (networks,),
    "time_and_energy": (costs, ratios),
    "mnist_width": (widths,),
    "conv4_dimensions": (dimensions,),
    "conv4_robustness": (robustness, ablation),
    "open_questions": (open_questions,),
    "digits_recalibration": (recalibration,),
    "lagging_statistics": (lagging,),
}


def main() -> None:
    print("\n\n".join(table(name) for name in TABLES if (RESULTS / f"{name}.json").exists()))


if __name__ == "__main__":
    main()
