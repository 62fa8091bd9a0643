"""The questions that the paper leaves open, as a table."""

from __future__ import annotations

import statistics

from grouping import Record, Table, grouped, mean

PAPER_ARM = "as in the paper"


def open_questions(records: list[Record]) -> Table:
    """A row for each way to switch; differences are of runs with the same parent and seed."""
    head = ["network", "the switch", "runs", "right after (%)", "test accuracy (%)", "against the paper's way"]
    rows = []
    for name, runs in sorted(grouped(records, "network").items(), key=lambda item: arm_order(item[0])):
        network, arm = name.split(", ", 1)
        differences = paired(records, name, f"{network}, {PAPER_ARM}")
        after = [run["validation_after_switch"] for run in runs if run["validation_after_switch"] is not None]
        rows.append(
            [
                network,
                arm if after or arm != PAPER_ARM else "",
                str(len(runs)),
                f"{statistics.fmean(after):.2f}" if after else "",
                f"{mean(runs, 'test_accuracy'):.2f}",
                "" if arm == PAPER_ARM or not differences else with_error(differences),
            ]
        )
    return head, rows


def arm_order(name: str) -> tuple[str, bool, str]:
    """Network by network, the paper's way first."""
    network, arm = name.split(", ", 1)
    return network, arm != PAPER_ARM, arm


def paired(records: list[Record], name: str, other: str) -> list[float]:
    """The differences in test accuracy between runs with the same seed."""
    mine, theirs = (
        {record["seed"]: record["test_accuracy"] for record in records if record["network"] == each}
        for each in (name, other)
    )
    return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def with_error(values: list[float]) -> str:
    """The mean, and its standard error where there are several values."""
    shown = f"{statistics.fmean(values):+.2f}"
    return f"{shown} ± {statistics.stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else shown
