"""The results files of the comparison: final runs, the grid's, and the plans that others are built from."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from peers import RESULTS
from peers.order import Run, grid_runs
from peers.parents import Point
from peers.plans import Plans
from records import Record, Records, Same, joined

FIELDS = (
    "method",
    "parent",
    "seed",
    "epochs",
    "trainable_params",
    "total_params",
    "flops_per_sample",
    "test_accuracy",
    "train_seconds",
    "energy_j",
    "timed_epochs",
    "last_epochs_s",  # each of those that stand for all that are not trained in a solo pass
    "peak_mib",
    "target",
    "learning_rate",
    "weight_decay",
    "commit",
    "compiled",
    "fused",
    "validation_accuracy",
    "last_loss",  # of the last epoch: whether a network fits what it is trained on
)
MEASURED = ("train_seconds", "energy_j", "timed_epochs", "last_epochs_s", "peak_mib")
GRID_FIELDS = (
    "method",
    "parent",
    "seed",
    "epochs",
    "learning_rate",
    "weight_decay",
    "validation_accuracy",
    "commit",
    "compiled",
)


class Replaceable(Records):
    """A results file in which what is known of a run can grow."""

    def replace(self, same: Same, grown: Callable[[Record], Record]) -> None:
        """Put what a run's record has grown to in its place: that of the file, which others may have changed."""
        with self._changing():
            if not any(map(same, self.records)):
                raise LookupError(
                    f"{self.path} does not hold the record any more that was to grow: bring it back, or do that run "
                    "anew, which reads its accuracy too"
                )
            self.records = [grown(record) if same(record) else record for record in self.records]


class Results:
    """What has been run so far."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self.final, self.grid = Replaceable(folder / "peers.json"), Records(folder / "peers_grid.json")
        self.plans = Plans(folder / "peers_plans.json")

    def find(self, run: Run) -> Record | None:
        """The record of a run, if it is there."""
        found = self.final if run.point is None else self.grid
        return next((record for record in found.records if _is(record, run)), None)

    def add(self, run: Run, measured: Record) -> None:
        """Keep what was measured of a run, at the point that it was done at.

        Where another process has recorded the same run meanwhile, its record stays, and gains only what it lacks.
        """
        point, same = self.point(run), partial(_is, run=run)
        assert point is not None
        known = {name: getattr(run, name) for name in ("method", "parent", "seed", "epochs", "target")}
        record = {**known, **point._asdict(), **measured}
        if run.point is not None:
            self.grid.add(_only(GRID_FIELDS, record), same)
        elif self.find(run) is not None or not self.final.add(_only(FIELDS, record), same):
            self.final.replace(same, partial(_grown, measured=measured))

    def machine(self) -> str:
        """What the last of the final runs was made on."""
        found = json.loads(self.final.path.read_text())
        return f"{found['hardware']['gpu'] or 'CPU'}, torch {found['versions']['torch']}"

    def point(self, run: Run) -> Point | None:
        """The point that a run is done at: its own, or the best of its method's grid once that is complete."""
        return run.point or self.chosen(run.method, run.parent)

    def chosen(self, method: str, parent: str) -> Point | None:
        """The point with the best validation accuracy; None while some are missing. One that diverged has None.

        Where several are best, it is the parent's own if that is among them: what switches forks from the parent.
        """
        found = {each.point: self.find(each) for each in grid_runs(method, parent)}
        if any(record is None for record in found.values()):
            return None

        def accuracy(point: Point) -> float:
            value = found[point]["validation_accuracy"]
            return float("-inf") if value is None else value

        of_parent = None if method == "parent" else self.chosen("parent", parent)
        return max(found, key=lambda point: (accuracy(point), point == of_parent))

    def has_diverged(self, run: Run) -> bool:
        """Whether a run is recorded without an accuracy."""
        record = self.find(run)
        return record is not None and record["test_accuracy" if run.point is None else "validation_accuracy"] is None


def _is(record: Record, run: Run) -> bool:
    names = ("method", "parent", "seed", "epochs")
    if any(record[name] != getattr(run, name) for name in names):
        return False
    if run.point is not None:
        return (record["learning_rate"], record["weight_decay"]) == run.point
    return run.method == "parent" or record.get("target") == run.target


def _grown(record: Record, measured: Record) -> Record:
    """A record with the times of a run that had the machine to itself; another that did not adds nothing to it."""
    if measured["train_seconds"] is None and measured["energy_j"] is None:
        return record
    known = {name: measured[name] for name in MEASURED if measured[name] is not None}
    return {**record, **known, "commit": joined(record["commit"], measured["commit"])}


def _only(names: tuple[str, ...], record: dict[str, Any]) -> Record:
    return {name: record[name] for name in names}
