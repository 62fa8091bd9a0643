"""The switch inside a training loop: look, plan and apply once, when the time has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from pcn.bases import Bases, find_bases
from pcn.budget import Budget, fit_budget
from pcn.config import PCNConfig
from pcn.distributed.engine import Engine
from pcn.errors import PlanError
from pcn.example import Forward
from pcn.plan import Plan, check_untransformed, get_plan
from pcn.planning import make_plan
from pcn.statistics import Statistics, analyze
from pcn.switching.batch_norm import recalibrate_
from pcn.switching.history import History
from pcn.switching.movement import leading_directions, movement
from pcn.switching.rules import (
    AccuracySlows,
    AfterEpoch,
    AfterStep,
    SubspacesSettle,
    SwitchRule,
    as_switch_rule,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Batches = Iterable[Any] | Callable[[], Iterable[Any]]
PURE = (AfterEpoch, AfterStep, AccuracySlows, SubspacesSettle)  # look at nothing in which processes could differ


@dataclass
class Switch:
    """Turns a model into its principal component network at the right moment of a training loop, once.

    Call :meth:`after_epoch` after every epoch (and :meth:`after_step` after every step, for ``at=AfterStep(...)``).
    ``params`` is a budget of trainable parameters as for :func:`pcn.compress_`; ``ema`` an averaged copy that follows;
    ``recalibrate`` measures batch norm's running statistics anew; ``strict`` refuses optimizers whose state is lost.
    ``group`` are the processes that train together, by default those of a model in DistributedDataParallel: all of
    them make the same calls, each with its own batches. ``analysis`` are further arguments of :func:`pcn.analyze`.

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
    group: ProcessGroup | None = None
    analysis: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = field(default=None, init=False)
    statistics: Statistics | None = field(default=None, init=False, repr=False)
    _seen: History = field(default_factory=History, init=False, repr=False)

    def __post_init__(self) -> None:
        self._rule = as_switch_rule(self.at)
        self._engine = Engine(self.model, self.optimizer, self.ema, self.group)
        self.plan = get_plan(self.model)  # a resumed run may have switched already

    def after_epoch(self, epoch: int, batches: Batches, *, accuracy: float | None = None) -> Plan | None:
        """Call this after every epoch, with how many are done; returns the plan when it switched, otherwise None.

        ``batches`` (or a function that returns them) are a few thousand training samples without augmentation. They
        are touched only at the switch, and after every epoch by a rule that watches the subspaces. Of several
        processes, the first one's accuracy counts.
        """
        if self.plan is not None:
            return None
        ranks, seen = self._engine.ranks, self._seen
        seen.epoch = epoch
        seen.accuracies += ranks.from_one(lambda: seen.checked(accuracy, self._rule))
        stats = None
        if getattr(self._rule, "watches_subspaces", False):
            batches = ranks.together(lambda: _repeatable(batches)) if self.recalibrate else batches
            stats = self._watch(batches)
        due = ranks.from_one(lambda: bool(self._rule.due(seen.progress())))
        return self._apply(batches, stats) if due else None

    def after_step(self, step: int, batches: Batches) -> Plan | None:
        """Call this after every optimizer step, with how many are done, for rules that count steps."""
        if self.plan is not None:
            return None
        due = bool(self._rule.due(self._seen.progress(step)))
        if type(self._rule) not in PURE:
            due = self._engine.ranks.from_one(lambda: due)
        return self._apply(batches, None) if due else None

    def now(self, batches: Batches) -> Plan:
        """Switch at once."""
        return self._apply(batches, None)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the plan, if the switch is behind it, and what the rule has seen so far."""
        return {"plan": None if self.plan is None else self.plan.to_json(), **self._seen.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a saved state; model, optimizer and averaged copy get the saved plan's shape, their own states next.

        So a run is resumed by loading the switch first, then the model, then the optimizer.
        """
        if state["plan"] is None and self.plan is not None:
            raise PlanError("this state is from before the switch, but the model has been switched: build it anew")
        self._seen.load_state_dict(state)
        if state["plan"] is not None and self.plan is None:
            plan = Plan.from_json(state["plan"])
            self._engine.reshape_(plan)
            self.plan = plan

    def _watch(self, batches: Batches) -> Statistics:
        """Look how far the subspaces have moved since the last time."""
        stats, ranks, seen = self._look(batches), self._engine.ranks, self._seen
        config = self.config or PCNConfig()
        if seen.directions:
            seen.movements.append(ranks.from_one(lambda: movement(seen.directions, stats, config)))
        seen.directions = ranks.together(lambda: leading_directions(stats, config))
        return stats

    def _look(self, batches: Batches) -> Statistics:
        self._engine.sync_buffers_()
        exclude = self.config.exclude if self.config else ()
        opened = self._engine.ranks.together(lambda: _opened(batches))
        ranks = self._engine.ranks
        return analyze(
            self.model, opened, forward=self.forward, exclude=exclude, group=ranks.group, **self.analysis
        )

    def _apply(self, batches: Batches, stats: Statistics | None) -> Plan:
        engine = self._engine
        engine.ranks.together(lambda: check_untransformed(self.model))
        before = engine.before_switch_()
        if self.recalibrate:
            batches = engine.ranks.together(lambda: _repeatable(batches))
        found = stats or self._look(batches)
        self.plan = engine.apply_(lambda: self._make(found), found.example, strict=self.strict)
        self.statistics = found
        if self.recalibrate:
            recalibrate_(
                self.model, engine.ranks.together(lambda: _opened(batches)), self.forward, group=engine.ranks.group
            )
        engine.after_switch(before)
        return self.plan

    def _make(self, stats: Statistics) -> tuple[Plan, Bases]:
        config = self.config or PCNConfig()
        if self.params is not None:
            config = fit_budget(self.model, stats, Budget(self.params), config)
        plan = make_plan(self.model, stats, config)
        return plan, find_bases(plan, stats, self.model)


def _opened(batches: Batches) -> Iterable[Any]:
    return batches() if callable(batches) else batches


def _repeatable(batches: Batches) -> Batches:
    return list(batches) if isinstance(batches, Iterator) and not callable(batches) else batches
