"""What came of the search for a planner, as a table: each arm beside a plain narrower network."""

from __future__ import annotations

from collections.abc import Sequence

from markdown_tables import markdown
from peers.arms import EVERY, NARROW, UNSWITCHED, alike
from peers.intervals import paired_difference
from peers.report import by_seed, counted, mean, shown
from records import Record

NOTHING = "No trial of the search is recorded yet."
HEAD = (
    "arm",
    "epochs",
    "runs",
    "trainable",
    "operations of training",
    "after the switch (%)",
    "validation (%)",
    "minus narrow (95%)",
)
ACCURACY = "validation_accuracy"


def table(records: Sequence[Record]) -> str:
    """A row for each arm and length: validation accuracy, and the paired difference from a plain narrower network.

    That network has the arm's weight decay or, where the arm has the best rates of a grid, the best of its own. The
    operations of training are those of the epochs before the switch and of the ones after it, over the narrower
    network's.
    """
    if not records:
        return NOTHING
    rows = []
    for epochs in sorted({record["epochs"] for record in records}):
        by_arm = {arm: [r for r in records if (r["arm"], r["epochs"]) == (arm, epochs)] for arm in EVERY}
        rows += [_row(runs, by_arm) for runs in by_arm.values() if runs]
    return markdown(HEAD, rows)


def _row(runs: list[Record], by_arm: dict[str, list[Record]]) -> list[str]:
    beside = by_arm.get(_narrow(runs[0]["arm"]), [])
    difference = None if runs is beside else paired_difference(by_seed(runs, ACCURACY), by_seed(beside, ACCURACY))
    return [
        runs[0]["arm"],
        str(runs[0]["epochs"]),
        counted(runs, ACCURACY),
        shown(runs, "trainable_params", 1, ",.0f"),
        _operations(runs, by_arm),
        _after_switch(runs),
        shown(runs, ACCURACY, 1, ".2f"),
        "" if difference is None else str(difference),
    ]


def _narrow(arm: str) -> str | None:
    """The arm of a narrower network that is trained as an arm is; None where there is none with its weight decay."""
    changes = EVERY[arm]
    if "learning_rate" in changes:  # each at the best of its grid
        return "narrow, tuned"
    decay = {"weight_decay": changes["weight_decay"]} if "weight_decay" in changes else {}
    return alike(arm, {**NARROW, **decay})


def _operations(runs: list[Record], by_arm: dict[str, list[Record]]) -> str:
    """Those of the whole training over the narrower network's; blank where a part of that is not recorded."""
    first = runs[0]
    beside = [by_arm.get(alike(first["arm"], changes) or "", []) for changes in (UNSWITCHED, NARROW)]
    parent, narrow, own = (mean(each, "flops_per_sample") for each in (*beside, runs))
    if narrow is None or own is None:
        return ""
    first_network = narrow if "model" in EVERY[first["arm"]] else parent
    before = (first["switch_epoch"] or 0) / first["epochs"]
    if before and first_network is None:
        return ""
    return f"{(before * (first_network or 0.0) + (1 - before) * own) / narrow:.2f}"


def _after_switch(runs: list[Record]) -> str:
    known = [r for r in runs if r[ACCURACY] is not None]
    switched = all(r["validation_after_switch"] is not None for r in known)
    return shown(known, "validation_after_switch", 1, ".2f") if switched else ""
