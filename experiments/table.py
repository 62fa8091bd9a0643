"""Print the results in ``experiments/results`` as Markdown tables, with the paper's number beside ours.

python experiments/table.py          all tables, as they stand in docs/reproduction.md
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

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


def table(name: str) -> str:
    """Return one results file as a table: a row for each network, from the largest down."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    by_network: dict[str, list[dict[str, Any]]] = {}
    for record in found["records"]:
        by_network.setdefault(record["network"], []).append(record)
    runs = sorted(by_network.values(), key=lambda records: -records[0]["trainable_params"])
    head = ["network", "trainable", "total", "runs", "test accuracy (%)", "lowest to highest", "paper"]
    lines = [head, ["---", "---:", "---:", "---:", "---:", "---:", "---:"], *map(row, runs)]
    gpu, torch = found["hardware"]["gpu"], found["versions"]["torch"]
    body = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"`experiments/{name}.py`, {gpu}, torch {torch}:\n\n{body}"


def row(records: list[dict[str, Any]]) -> list[str]:
    first = records[0]
    accuracies = [record["test_accuracy"] for record in records]
    spread = f"{min(accuracies):.2f} to {max(accuracies):.2f}" if len(accuracies) > 1 else ""
    paper = PAPER.get(first["network"])
    return [
        first["network"],
        f"{first['trainable_params']:,}",
        f"{first['total_params']:,}",
        str(len(records)),
        f"{statistics.mean(accuracies):.2f}",
        spread,
        "" if paper is None else f"{paper:.2f}",
    ]


def main() -> None:
    print("\n\n".join(table(path.stem) for path in sorted(RESULTS.glob("*.json"))))


if __name__ == "__main__":
    main()
