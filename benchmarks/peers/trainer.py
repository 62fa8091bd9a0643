"""The library's training loop with the switch of any method, and with everything that a method takes counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pcn.training import Data, Trainer
from pcn.training.meter import Stopwatch, plus
from pcn.training.step import Step

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
    """A trainer with any method's switch, which also counts the joules of the switch and of setting up."""

    def __init__(self, *arguments: Any, make_switch: MakeSwitch | None = None, **keywords: Any) -> None:
        self._make = make_switch
        self.side_j: float | None = 0.0
        super().__init__(*arguments, **keywords)
        self.watch = Laps(self.device)

    def make_switch(self) -> Any:
        return super().make_switch() if self._make is None else self._make(self)

    def set_up(self, *batch: torch.Tensor) -> Step:
        step = super().set_up(*batch)
        self.side_j = plus(self.side_j, self.watch.taken[-1][1])
        return step

    def switched(self, plan: Any) -> None:
        begin = len(self.watch.taken)
        super().switched(plan)
        self.side_j = plus(self.side_j, self.watch.taken[begin][1])
