"""The questions that the paper leaves open, as a figure: what each way to switch gains or loses."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes

from grouping import by_length
from table_questions import PAPER_ARM, arm_order, paired

Record = dict[str, Any]


def switched(parent: str) -> Callable[[Record], bool]:
    """Whether a record is of a parent's network that is switched in several ways."""
    return lambda record: record["network"].startswith(f"{parent}-pcn")


def open_questions(records: list[Record], axes: Axes) -> None:
    """A line for each way and length: a dot for each seed, and the mean with its standard error."""
    found = sorted(by_length(records), key=lambda each: arm_order(each[1][0]))
    lines = [
        (runs[0]["network"] + length, values)
        for length, runs in found
        if not runs[0]["network"].endswith(PAPER_ARM) and (values := paired(records, runs))
    ]
    axes.axvline(0, color="#333333", lw=1)
    for height, (_, values) in enumerate(lines):
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        axes.plot(values, [height] * len(values), "o", ms=3, color="#0072b2", alpha=0.35)
        axes.errorbar(statistics.fmean(values), height, xerr=error, fmt="o", ms=5, capsize=3, color="#0072b2")
    axes.set_yticks(range(len(lines)), [name.replace(", ", ": ") for name, _ in lines])
    axes.invert_yaxis()
    axes.set_xlabel("points of test accuracy\nagainst the paper's way")
