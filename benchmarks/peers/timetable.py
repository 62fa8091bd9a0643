"""When the runs of a driver began, how long each may take, and which can still end in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from peers.pace import Pace, Taken

STILL_S, STILL_EPOCHS = 240.0, 10  # without a word from a run: the start and so many epochs, but at least so long
SOON = 0.25  # of the time that another run would take
FASTER = 2.0  # times, at most, that a run may become when those beside it end
NAMED = 10  # runs that are named where many have not started

Item = TypeVar("Item")


class Begun(NamedTuple):
    """When a run began, and how many epochs it had to do then."""

    at: float
    epochs: int


class Timetable(Generic[Item]):
    """The times of runs, each of which is a ``kind`` of network and method and has ``epochs_left``; so many at once."""

    def __init__(
        self,
        pace: Pace,
        limit_s: float,
        kind: Callable[[Item], tuple[str, str]],
        epochs_left: Callable[[Item], int],
        together: int = 1,
    ) -> None:
        self.pace, self.kind, self.epochs_left, self.together = pace, kind, epochs_left, together
        self.start = time.time()
        self.deadline = self.start + limit_s
        self.begun: dict[Item, Begun] = {}

    def begin(self, item: Item) -> None:
        """Note that a run begins, and say so."""
        epochs, seconds = self.epochs_left(item), self.seconds(item)
        self.begun[item] = Begun(time.time(), epochs)
        about = "" if seconds is None else f", about {seconds:.0f} s"
        print(f"{item}: starts, {epochs} epochs{about}", flush=True)

    def learn(self, item: Item, measured: dict[str, Any]) -> None:
        """Know what a run that has just ended took, on the clock on the wall."""
        epoch_s, begun = measured["epoch_seconds"], self.begun.get(item)
        if epoch_s is not None and begun is not None:
            epochs_s = measured["epochs_trained"] * epoch_s
            self.pace.learn(*self.kind(item), Taken(max(0.0, time.time() - begun.at - epochs_s), epoch_s))

    def seconds(self, item: Item) -> float | None:
        """How long a run that is ready may take, None where nothing is known."""
        usual = self.pace.usual(*self.kind(item))
        return None if usual is None else usual.seconds(self.epochs_left(item))

    def soon(self, running: Iterable[Item], item: Item) -> set[Item]:
        """Those of the running that are about to end, compared with the time that another would take.

        A place that is kept free for them stands idle for a quarter of that time at most; given away, it would be gone
        four times as long. One that is overdue by as much is not counted on any more.
        """
        within_s = SOON * (self.seconds(item) or 0.0)
        return {each for each in running if (left_s := self._left_s(each)) is not None and abs(left_s) < within_s}

    def _left_s(self, item: Item) -> float | None:
        """When a run that has begun may end, from now on; less than 0 where it should have."""
        usual, begun = self.pace.usual(*self.kind(item)), self.begun[item]
        return None if usual is None else begun.at + usual.seconds(begun.epochs) - time.time()

    def stuck(self, item: Item, metrics: Path) -> bool:
        """Whether a run has written no metrics for longer than it can take; not where nobody knows what that is."""
        usual = self.pace.usual(*self.kind(item))
        if usual is None:
            return False
        last = max(self.begun[item].at, metrics.stat().st_mtime if metrics.exists() else 0.0)
        return time.time() - last > max(STILL_S, usual.seconds(STILL_EPOCHS))

    def fits(self, item: Item, running: Sequence[Item], ready: Iterable[Item]) -> bool:
        """Whether a run that is ready can end in time, and all that are running beside it.

        What is known is how long runs take when ``together`` share the machine. They share it evenly, so that all have
        ended when it has done the work of all; but a run alone is not as many times faster as there were others. While
        nothing is known of its network that is for the shortest runs to find out, as they lose the least.
        """
        if self.deadline == math.inf:
            return True
        seconds = self.seconds(item)
        if seconds is not None:
            beside_s = sum(max(0.0, self._left_s(each) or 0.0) for each in running)
            work_s = (seconds + beside_s) / self.together
            return time.time() + max(work_s, seconds / min(FASTER, self.together)) <= self.deadline
        network, epochs = self.kind(item)[0], self.epochs_left(item)
        if beside := [self.begun[each].epochs for each in running if self.kind(each)[0] == network]:
            return epochs <= min(beside)
        untried = (each for each in ready if each not in self.begun)
        return all(epochs <= self.epochs_left(each) for each in untried if self.kind(each)[0] == network)


def say_not_started(runs: Sequence[Any], why: str) -> None:
    """Name runs that are left out."""
    if runs:
        more = [f"and {len(runs) - NAMED} more"] if len(runs) > NAMED else []
        print(f"{len(runs)} runs are not started, {why}:", *runs[:NAMED], *more, sep="\n  ", flush=True)
