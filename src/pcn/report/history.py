"""What a run's metrics tell about its epochs, and about the time before and after its switch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

Record = dict[str, Any]
Sides = tuple[float | None, float | None]
START: Record = {"epoch": 0}  # stands before the first epoch


def history_of(metrics: Sequence[Record]) -> Record:
    """Accuracy and effective dimensions epoch by epoch, and where the switch came."""
    looks = [record for record in metrics if record["event"] == "dimensions"]
    dimensions: dict[str, list[list[int]]] = {}
    for seen in looks:
        for name, count in seen.get("layers", {}).items():
            if count is not None:
                dimensions.setdefault(name, []).append([seen["epoch"], count])
    return {
        "epochs": [[record["epoch"], record["validation_accuracy"]] for record in _epochs(metrics)],
        "switch": _switch(metrics),
        "dimensions": dimensions,
        "rule": next((seen["rule"] for seen in looks if "rule" in seen), None),
        "error": next((seen["error"] for seen in looks if "error" in seen), None),
    }


def before_and_after(metrics: Sequence[Record], number: str) -> Sides:
    """The median of a number of the epochs before the switch and after it; None where it is not known."""
    return _both(metrics, lambda earlier, record: _number(record, number))


def growth_before_and_after(metrics: Sequence[Record], number: str) -> Sides:
    """The same of what an epoch adds to a number that counts from the start of the run."""

    def growth(earlier: Record, record: Record) -> float | None:
        before, now = 0.0 if earlier is START else _number(earlier, number), _number(record, number)
        return None if now is None or before is None else now - before

    return _both(metrics, growth)


def _both(metrics: Sequence[Record], value: Callable[[Record, Record], float | None]) -> Sides:
    """Medians over the epochs that lie wholly on one side; one whose predecessor is missing does not count.

    While what the cut takes away fades, an epoch is on neither.
    """
    at, began = (_when(metrics, event) for event in ("switch", "fade"))
    before: list[float] = []
    after: list[float] = []
    for earlier, record in pairwise([START, *_epochs(metrics)]):
        found = value(earlier, record) if record["epoch"] == earlier["epoch"] + 1 else None
        if found is not None and record["epoch"] <= min(at, began):
            before.append(found)
        elif found is not None and earlier["epoch"] >= at:
            after.append(found)
    return median(before) if before else None, median(after) if after else None


def _epochs(metrics: Sequence[Record]) -> list[Record]:
    return [record for record in metrics if record["event"] == "epoch"]


def _switch(metrics: Sequence[Record]) -> Record | None:
    """When the switch came, in epochs, and the accuracy on both sides of it."""
    switch = next((record for record in metrics if record["event"] == "switch"), None)
    if switch is None:
        return None
    ends = [record for record in metrics if record["event"] in ("epoch", "branched")]
    before = [record["validation_accuracy"] for record in ends if record["epoch"] <= switch["epoch"]]
    return {
        "step": switch["step"],
        "at": _when(metrics, "switch"),
        "before": before[-1] if before else None,
        "after": switch["validation_accuracy"],
        "seconds": switch.get("seconds"),
    }


def _when(metrics: Sequence[Record], event: str) -> float:
    """How many epochs were done when something first happened; infinitely many where it never did."""
    happened = next((record for record in metrics if record["event"] == event), None)
    if happened is None:
        return math.inf
    steps = next((record["step"] / record["epoch"] for record in _epochs(metrics) if record["epoch"]), None)
    return float(happened["step"] / steps if steps else happened["epoch"])


def _number(record: Record, name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else None
