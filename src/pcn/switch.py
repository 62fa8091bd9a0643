"""The switch inside a training loop: look, plan and apply once, when the time has come."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from pcn.budget import Budget, fit_budget
from pcn.config import PCNConfig
from pcn.errors import ConfigError
from pcn.example import Forward
from pcn.plan import Plan, check_untransformed, get_plan
from pcn.planning import make_plan
from pcn.statistics import Statistics, analyze


@dataclass(frozen=True)
class Progress:
    """What a rule may look at after an epoch: how many are done, and the validation accuracy after each."""

    epoch: int
    accuracies: tuple[float, ...] = ()


@runtime_checkable
class SwitchRule(Protocol):
    """Anything that says, after an epoch, whether it is time."""

    def due(self, progress: Progress) -> bool: ...


@dataclass(frozen=True)
class AfterEpoch:
    """Switch when this many epochs are done (or later, should a call have been missed).

    >>> AfterEpoch(15).due(Progress(14)), AfterEpoch(15).due(Progress(15))
    (False, True)
    """

    epoch: int

    def __post_init__(self) -> None:
        if isinstance(self.epoch, bool) or not isinstance(self.epoch, int) or self.epoch < 0:
            raise ConfigError(f"AfterEpoch({self.epoch!r}): give a whole number of at least 0")

    def due(self, progress: Progress) -> bool:
        return progress.epoch >= self.epoch


@dataclass(frozen=True)
class AccuracySlows:
    """Switch when validation accuracy no longer rises at a high rate, the paper's heuristic made precise.

    The rise of the last epoch must be below ``share`` of the best rise of any epoch before it. Accuracies may be in
    percent or fractions, as only their ratio counts; two rises are needed, so three epochs at the least.

    >>> rule = AccuracySlows(share=0.25)
    >>> [rule.due(Progress(n, (40.0, 60.0, 68.0, 70.0)[:n])) for n in (1, 2, 3, 4)]
    [False, False, False, True]
    """

    share: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"AccuracySlows({self.share!r}): the share must lie in (0, 1]")

    def due(self, progress: Progress) -> bool:
        seen = progress.accuracies
        rises = [after - before for before, after in pairwise(seen)]
        if len(rises) < 2:
            return False
        best = max(rises[:-1])
        return best > 0 and rises[-1] < self.share * best


def as_switch_rule(at: int | SwitchRule) -> SwitchRule:
    """Turn 15 into ``AfterEpoch(15)``; rules pass through."""
    if isinstance(at, int):
        return AfterEpoch(at)
    if isinstance(at, SwitchRule):
        return at
    raise ConfigError(f"at={at!r}: give a number of epochs or a rule such as AccuracySlows()")


@dataclass
class Switch:
    """Turns a model into its principal component network at the right moment of a training loop, once.

    >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> switch = Switch(model, None, PCNConfig(rank=16), at=2)  # give your optimizer in place of None
    >>> import torch
    >>> [switch.step(epoch, [torch.randn(128, 8)]) is not None for epoch in (1, 2, 3)]
    [False, True, False]
    """

    model: nn.Module
    optimizer: Optimizer | None
    config: PCNConfig | None = None
    at: int | SwitchRule = 1
    params: int | float | None = None  # a budget of trainable parameters, as for compress_
    ema: nn.Module | None = None
    forward: Forward | None = None
    strict: bool = False
    plan: Plan | None = field(default=None, init=False)
    statistics: Statistics | None = field(default=None, init=False)
    _accuracies: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.at = as_switch_rule(self.at)
        self.plan = get_plan(self.model)  # a resumed run may have switched already

    def step(self, epoch: int, batches: Iterable[Any], *, accuracy: float | None = None) -> Plan | None:
        """Call this after every epoch, with how many are done; returns the plan when it switched, otherwise None.

        ``batches`` are a few thousand training samples without augmentation, and are touched only at the switch.
        """
        assert isinstance(self.at, SwitchRule)
        if self.plan is not None:
            return None
        if accuracy is not None:
            if not math.isfinite(accuracy):
                raise ConfigError(f"accuracy={accuracy!r} after epoch {epoch}: give a finite number")
            self._accuracies.append(float(accuracy))
        elif isinstance(self.at, AccuracySlows):
            raise ConfigError("AccuracySlows needs accuracy=..., the validation accuracy after this epoch")
        if not self.at.due(Progress(epoch, tuple(self._accuracies))):
            return None
        return self.now(batches)

    def now(self, batches: Iterable[Any]) -> Plan:
        """Switch at once."""
        check_untransformed(self.model)
        config = self.config or PCNConfig()
        stats = analyze(self.model, batches, forward=self.forward, exclude=config.exclude)
        if self.params is not None:
            config = fit_budget(self.model, stats, Budget(self.params), config)
        plan = make_plan(self.model, stats, config)
        plan.apply_(self.model, stats, optimizer=self.optimizer, ema=self.ema, strict=self.strict)
        self.plan, self.statistics = plan, stats
        return plan

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beside the model, which carries its plan itself."""
        return {"accuracies": list(self._accuracies)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._accuracies = [float(value) for value in state["accuracies"]]
