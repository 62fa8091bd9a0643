"""The library's training loop with the switch of any method, and with everything that a method takes counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from pcn.training import Data, Trainer
from pcn.training.meter import Stopwatch, plus
from pcn.training.step import Step
from peers.device_turns import Turn

MakeSwitch = Callable[[Trainer], Any]


class Unread:
    """Data whose test set stays unread: the validation split stands in its place."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, "validation" if name == "test" else name)


class Laps(Stopwatch):
    """A stopwatch that remembers its laps."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.taken: list[tuple[float, float | None]] = []

    def lap(self) -> tuple[float, float | None]:
        self.taken.append(super().lap())
        return self.taken[-1]


class PeerTrainer(Trainer):
    """A trainer with any method's switch, which also counts the joules of the switch.

    With a ``turn`` it has the device to itself, but for when its step is compiled: then others may have it, and how
    long it waits until it has it again is nobody's time.
    """

    def __init__(
        self, *arguments: Any, make_switch: MakeSwitch | None = None, turn: Turn | None = None, **keywords: Any
    ) -> None:
        self._make, self._turn = make_switch, turn
        self.switch_j: float | None = 0.0
        super().__init__(*arguments, **keywords)
        self.watch = Laps(self.device)

    def make_switch(self) -> Any:
        return super().make_switch() if self._make is None else self._make(self)

    def run(self, deadline: float = math.inf) -> dict[str, Any] | None:
        with self._turn or nullcontext():
            self.watch.lap()  # which began when this was made
            return super().run(deadline)

    def set_up(self, *batch: torch.Tensor) -> Step:
        waited_s = 0.0 if self._turn is None else self._turn.waited_s
        step = super().set_up(*batch)
        if self._turn is not None:
            self.progress.setup_seconds = plus(self.progress.setup_seconds, waited_s - self._turn.waited_s)
        return step

    def make_step(self, *batch: torch.Tensor) -> Step:
        with nullcontext() if self._turn is None else self._turn.given_up():
            return super().make_step(*batch)

    def switched(self, plan: Any) -> None:
        begin = len(self.watch.taken)
        super().switched(plan)
        self.switch_j = plus(self.switch_j, self.watch.taken[begin][1])
