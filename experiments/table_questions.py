"""The questions that the paper leaves open, as a table."""

from __future__ import annotations

import statistics

from grouping import Record, Table, by_length, mean

PAPER_ARM = "as in the paper"


def open_questions(records: list[Record]) -> Table:
    """A row for each way to switch and length; differences are of runs with the same parent, length and seed."""
    head = ["network", "the switch", "runs", "right after (%)", "test accuracy (%)", "against the paper's way"]
    rows = []
    for length, runs in sorted(by_length(records), key=lambda each: arm_order(each[1][0])):
        network, arm = runs[0]["network"].split(", ", 1)
        differences = paired(records, runs)
        after = [run["validation_after_switch"] for run in runs if run["validation_after_switch"] is not None]
        rows.append(
            [
                network + length,
                arm if after or arm != PAPER_ARM else "",
                str(len(runs)),
                f"{statistics.fmean(after):.2f}" if after else "",
                f"{mean(runs, 'test_accuracy'):.2f}",
                "" if arm == PAPER_ARM or not differences else with_error(differences),
            ]
        )
    return head, rows


def arm_order(record: Record) -> tuple[str, int, bool, str]:
    """Network by network and length by length, the paper's way first."""
    network, arm = record["network"].split(", ", 1)
    return network, record["epochs"], arm != PAPER_ARM, arm


def paired(records: list[Record], runs: list[Record]) -> list[float]:
    """The differences in test accuracy between runs and those of the paper's way with the same length and seed."""
    network, epochs = runs[0]["network"].split(", ")[0], runs[0]["epochs"]
    theirs = {
        record["seed"]: record["test_accuracy"]
        for record in records
        if (record["network"], record["epochs"]) == (f"{network}, {PAPER_ARM}", epochs)
    }
    mine = {record["seed"]: record["test_accuracy"] for record in runs}
    return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def with_error(values: list[float]) -> str:
    """The mean, and its standard error where there are several values."""
    shown = f"{statistics.fmean(values):+.2f}"
    return f"{shown} ± {statistics.stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else shown
