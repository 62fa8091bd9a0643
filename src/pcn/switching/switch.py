"""The switch inside a training loop: look, plan and apply once, when the time has come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pcn.budget import Budget, fit_budget
from pcn.config import PCNConfig
from pcn.errors import ConfigError
from pcn.example import Forward
from pcn.plan import Plan, check_untransformed, get_plan
from pcn.planning import make_plan
from pcn.statistics import Statistics, analyze
from pcn.surgery import reshape_
from pcn.switching.batch_norm import recalibrate_
from pcn.switching.movement import Directions, leading_directions, movement
from pcn.switching.rules import Progress, SwitchRule, as_switch_rule

Batches = Iterable[Any] | Callable[[], Iterable[Any]]


@dataclass
class Switch:
    """Turns a model into its principal component network at the right moment of a training loop, once.

    Call :meth:`after_epoch` after every epoch (and :meth:`after_step` after every step, for ``at=AfterStep(...)``).
    ``params`` is a budget of trainable parameters as for :func:`pcn.compress_`; ``ema`` an averaged copy that follows;
    ``recalibrate`` measures batch norm's running statistics anew; ``strict`` refuses optimizers whose state is lost.

    >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> switch = Switch(model, None, PCNConfig(rank=16), at=2)  # give your optimizer in place of None
    >>> import torch
    >>> [switch.after_epoch(epoch, [torch.randn(128, 8)]) is not None for epoch in (1, 2, 3)]
    [False, True, False]
    """

    model: nn.Module
    optimizer: Optimizer | None
    config: PCNConfig | None = None
    at: int | SwitchRule = 1
    params: int | float | None = None
    ema: nn.Module | None = None
    forward: Forward | None = None
    strict: bool = False
    recalibrate: bool = False
    plan: Plan | None = field(default=None, init=False)
    statistics: Statistics | None = field(default=None, init=False, repr=False)
    _accuracies: list[float] = field(default_factory=list, init=False, repr=False)
    _movements: list[float] = field(default_factory=list, init=False, repr=False)
    _directions: Directions = field(default_factory=dict, init=False, repr=False)
    _epoch: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._rule = as_switch_rule(self.at)
        self.plan = get_plan(self.model)  # a resumed run may have switched already

    def after_epoch(self, epoch: int, batches: Batches, *, accuracy: float | None = None) -> Plan | None:
        """Call this after every epoch, with how many are done; returns the plan when it switched, otherwise None.

        ``batches`` (or a function that returns them) are a few thousand training samples without augmentation. They
        are touched only at the switch, and after every epoch by a rule that watches the subspaces.
        """
        if self.plan is not None:
            return None
        self._epoch = epoch
        self._note_accuracy(epoch, accuracy)
        stats = None
        if getattr(self._rule, "watches_subspaces", False):
            stats = self._look(batches)
            if self._directions:
                self._movements.append(movement(self._directions, stats, self.config or PCNConfig()))
            self._directions = leading_directions(stats, self.config or PCNConfig())
        return self._apply(batches, stats) if self._rule.due(self._progress(step=0)) else None

    def after_step(self, step: int, batches: Batches) -> Plan | None:
        """Call this after every optimizer step, with how many are done, for rules that count steps."""
        if self.plan is not None or not self._rule.due(self._progress(step)):
            return None
        return self.now(batches)

    def now(self, batches: Batches) -> Plan:
        """Switch at once."""
        return self._apply(batches, None)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the plan, if the switch is behind it, and what the rule has seen so far."""
        return {
            "plan": None if self.plan is None else self.plan.to_json(),
            "epoch": self._epoch,
            "accuracies": list(self._accuracies),
            "movements": list(self._movements),
            "directions": dict(self._directions),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a saved state; model, optimizer and averaged copy get the saved plan's shape, their own states next.

        So a run is resumed by loading the switch first, then the model, then the optimizer.
        """
        self._epoch = int(state["epoch"])
        self._accuracies = [float(value) for value in state["accuracies"]]
        self._movements = [float(value) for value in state["movements"]]
        self._directions = dict(state["directions"])
        if state["plan"] is not None and self.plan is None:
            plan = Plan.from_json(state["plan"])
            reshape_(plan, self.model, optimizer=self.optimizer, ema=self.ema)
            self.plan = plan

    def _note_accuracy(self, epoch: int, accuracy: float | None) -> None:
        if accuracy is None:
            if getattr(self._rule, "needs_accuracy", False):
                raise ConfigError(f"{self._rule!r} needs accuracy=..., the validation accuracy after this epoch")
        elif not math.isfinite(accuracy):
            raise ConfigError(f"accuracy={accuracy!r} after epoch {epoch}: give a finite number")
        else:
            self._accuracies.append(float(accuracy))

    def _progress(self, step: int) -> Progress:
        return Progress(self._epoch, step, tuple(self._accuracies), tuple(self._movements))

    def _look(self, batches: Batches) -> Statistics:
        exclude = self.config.exclude if self.config else ()
        return analyze(self.model, _opened(batches), forward=self.forward, exclude=exclude)

    def _apply(self, batches: Batches, stats: Statistics | None) -> Plan:
        check_untransformed(self.model)
        if self.recalibrate and not callable(batches) and isinstance(batches, Iterator):
            batches = list(batches)  # they are gone through once more
        stats = stats or self._look(batches)
        config = self.config or PCNConfig()
        if self.params is not None:
            config = fit_budget(self.model, stats, Budget(self.params), config)
        plan = make_plan(self.model, stats, config)
        plan.apply_(self.model, stats, optimizer=self.optimizer, ema=self.ema, strict=self.strict)
        self.plan, self.statistics = plan, stats
        if self.recalibrate:
            recalibrate_(self.model, _opened(batches), self.forward)
        return plan


def _opened(batches: Batches) -> Iterable[Any]:
    return batches() if callable(batches) else batches
