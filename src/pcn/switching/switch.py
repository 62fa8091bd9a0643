"""The switch inside a training loop: look, plan and apply once, when the time has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from pcn.config import PCNConfig, check_flags
from pcn.distributed.engine import Engine
from pcn.distributed.plans import Made
from pcn.errors import ConfigError, PlanError
from pcn.layers import transformable_layers, unwrap
from pcn.planner import Measured
from pcn.planner.budget import Budget, Limit, as_budget, config_of
from pcn.planner.reachable import check_reachable
from pcn.planner.units import UNITS
from pcn.planner.within import plan_within
from pcn.plans.fit import check_statistics
from pcn.plans.making import make_plan
from pcn.plans.nothing import warn_of_nothing
from pcn.plans.plan import Plan, check_untransformed, get_plan
from pcn.plans.ranks import stats_for
from pcn.rewriting.bases import find_bases
from pcn.rewriting.optimizer_checks import check_could_follow
from pcn.rewriting.surgery import averaged, with_average
from pcn.rewriting.taps import TapMoments
from pcn.running.example import Batches, Example, Forward, opened, repeatable
from pcn.running.optimizers import Optimizers, as_optimizers
from pcn.statistics import Statistics, analyze
from pcn.switching.batch_norm import Recalibration
from pcn.switching.checks import (
    check_analysis,
    check_is_copy,
    check_leads_on,
    check_same,
    check_state,
    checked_count,
)
from pcn.switching.dimensions import dimension_rule, effective_dimensions, log_dimensions
from pcn.switching.fading import Fading
from pcn.switching.foreseen import check_could_fade, check_fade, check_rules, check_some_held
from pcn.switching.history import History
from pcn.switching.movement import leading_subspaces, movement
from pcn.switching.rules import (
    AccuracySlows,
    AfterEpoch,
    AfterStep,
    SubspacesSettle,
    SwitchRule,
    as_switch_rule,
)
from pcn.switching.untold import Told, warn_when_gone

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

PURE = (AfterEpoch, AfterStep, AccuracySlows, SubspacesSettle)  # look at nothing in which processes could differ


@dataclass
class Switch:
    """Turns a model into its principal component network at the right moment of a training loop, once.

    Call :meth:`after_epoch` after every epoch (and :meth:`after_step` after every step, for ``at=AfterStep(...)``):
    rules that count epochs come true in no other way. A switch that was told of steps alone says so when it is gone.
    With ``at=0`` it is before any training: call ``after_epoch(0, batches)`` ahead of the loop.
    ``optimizer`` is the one that trains the model, or a list of all that do. ``config`` may be a :class:`pcn.Budget`,
    and ``params``, ``flops``, ``step_ms``, ``memory_mib`` and ``stored`` are short for one; ``ema`` is an averaged copy
    that follows; ``recalibrate`` measures batch norm's running statistics anew, the copy's too; ``strict`` refuses
    optimizers whose state is lost, and parameters that none of them holds. ``log`` is a logger
    (:func:`pcn.switching.log_dimensions`) that is told the effective dimension of every layer after every epoch up to
    the switch. With ``fade``, what the cut takes away fades over so many steps first, and :meth:`after_step` is called
    after every one of them; channels that are dropped cannot fade, nor can layers with neither a bias nor a batch norm
    behind them that trains. ``group`` are the processes that train together, by default those of a model in
    DistributedDataParallel: all of them make the same calls, each with its own batches. ``measured`` are costs that
    :func:`pcn.measure_costs` found: a budget of time or memory that cannot be met is then refused at once, and with a
    batch as ``example`` one of operations is, which would show at the switch. ``analysis`` are further arguments of
    :func:`pcn.analyze`, whose mode is ``"batch"`` within a budget: what counts is what training sees. What the plan was
    made from may take more memory than a step does; it stays in ``statistics`` with ``keep_statistics`` alone.

    >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> switch = Switch(model, None, PCNConfig(rank=16), at=2)  # give your optimizer in place of None
    >>> import torch
    >>> [switch.after_epoch(epoch, [torch.randn(128, 8)]) is not None for epoch in (1, 2, 3)]
    [False, True, False]
    """

    model: nn.Module
    optimizer: Optimizers
    config: PCNConfig | Budget | None = None
    at: int | SwitchRule = 1
    params: Limit = None
    flops: Limit = None
    step_ms: Limit = None
    memory_mib: Limit = None
    stored: Limit = None
    ema: nn.Module | None = None
    forward: Forward | None = None
    strict: bool = False
    recalibrate: bool = False
    fade: int = 0
    log: object | None = None
    group: ProcessGroup | None = None
    measured: Measured | None = None
    example: Any = None
    analysis: Mapping[str, Any] = field(default_factory=dict)
    keep_statistics: bool = False
    plan: Plan | None = field(default=None, init=False)
    statistics: Statistics | None = field(default=None, init=False, repr=False)
    _seen: History = field(default_factory=History, init=False, repr=False)
    _fading: Fading | None = field(default=None, init=False, repr=False)
    _told: Told = field(default_factory=Told, init=False, repr=False)
    _asks: bool | None = field(default=None, init=False, repr=False)  # whether the first rank is asked at every step

    def __post_init__(self) -> None:
        self._rule = as_switch_rule(self.at)
        as_optimizers(self.optimizer)  # what is none shows now
        check_analysis(self.analysis)
        check_flags(self, "strict", "recalibrate", "keep_statistics")
        self._wish = as_budget(self.config, **self._limits) or self.config or PCNConfig()
        if isinstance(self._wish, Budget):
            self._wish = self._wish.trained_by(self.optimizer)
        check_fade(self.fade, self._wish)
        self._engine = Engine(self.model, self.optimizer, self.ema, self.group)
        if self.ema is not None:
            check_is_copy(averaged(self.ema, unwrap(self.model)), unwrap(self.model))
        found = get_plan(self.model)
        self.plan = found if found is not None and found.changes_something else None  # a resumed run may have switched
        if self.plan is None:
            self._check_foreseen()
        warn_when_gone(self, self._rule, self._told)

    def _check_foreseen(self) -> None:
        """Raise now what would show at the switch, epochs later."""
        base, options, optimizers = unwrap(self.model), self.options, as_optimizers(self.optimizer)
        layers = list(transformable_layers(base))
        options.check_names(name for name, _, _ in layers)
        free = {name: layer for name, layer, why in layers if why is None and options.excludes(name) is None}
        check_rules(options, free)
        check_could_follow(optimizers, free, options, strict=self.strict)
        check_some_held(optimizers, base)
        if self.fade:
            check_could_fade(options, free, base)
        if isinstance(self._wish, Budget):
            check_reachable(self.model, self._wish, self.measured, self._call())

    def __repr__(self) -> str:
        """One line, where the model and the optimizer would fill pages."""
        optimizers = " and ".join(type(each).__name__ for each in as_optimizers(self.optimizer)) or "no optimizer"
        parts = [type(self.model).__name__, optimizers]
        parts += [repr(self.config)] if self.config is not None else []
        parts += [f"{name}={value}" for name, value in self._limits.items() if value is not None]
        return f"Switch({', '.join(parts)}, {f'at={self._rule}' if self.plan is None else 'switched'})"

    @property
    def _limits(self) -> dict[str, Limit]:
        """The budget that is given by its numbers."""
        return {name: getattr(self, name) for name in UNITS}

    def after_epoch(
        self, epoch: int, batches: Batches, *, accuracy: float | None = None, statistics: Statistics | None = None
    ) -> Plan | None:
        """Call this after every epoch, with how many are done; returns the plan when it switched, otherwise None.

        ``batches`` (or a function that returns them) are a few thousand training samples without augmentation. They
        are touched only at the switch, and after every epoch by a rule that watches the subspaces or for a logger; not
        at all where :meth:`look` has just given the ``statistics``. Of several processes, the first one's accuracy
        counts.
        """
        epoch = checked_count("epoch", epoch)
        self._told.epochs = True
        if self._fading is not None:
            self._fading.check_moves()
        if self.begun:
            return None
        if statistics is not None:
            check_statistics(statistics, unwrap(self.model))
        ranks, seen = self._engine.ranks, self._seen.copy()  # kept if nothing fails: the epoch may be told again
        watches = getattr(self._rule, "watches_subspaces", False)
        seen.epoch = epoch
        if epoch == 0 and not watches and self.log is None and not self._is_due(seen):  # nothing to do before the first
            raise ConfigError("epoch=0: give how many epochs are done, which is 1 after the first")
        seen.accuracies += ranks.from_one(lambda: seen.checked(accuracy, self._rule))
        if statistics is None and (watches or self.log is not None):
            again = self.recalibrate or self._measures_worth
            batches = ranks.together(lambda: repeatable(batches)) if again else batches
            statistics = self.look(batches)
        if statistics is not None and self.log is not None:
            self._tell(epoch, statistics)
        if statistics is not None and watches:
            self._watch(seen, statistics)
        due = self._is_due(seen)
        if not due:
            seen.check_told(self._rule)
        plan = self._begin(batches, statistics) if due else None
        if self._fading is not None:
            self._fading.check_moves()  # to count from the end of this epoch
        if self.begun:
            seen.subspaces = {}  # nobody will ask how far they have moved
        self._seen = seen
        return plan

    def after_step(self, step: int, batches: Batches) -> Plan | None:
        """Call this after every optimizer step, with how many are done, for rules that count steps."""
        if self.plan is not None:
            return None
        self._seen.step = self._told.hear(checked_count("step", step))
        if self._fading is not None or getattr(self._rule, "counts_steps", False):
            self._engine.check_steps_alike()
        if self._fading is not None:
            return self._fade(self._fading, batches)
        if self._asks is None:
            self._agree_on_rule()
        due = bool(self._rule.due(self._seen.progress()))
        if self._asks:
            due = self._engine.ranks.from_one(lambda: due)
        return self._begin(batches, None) if due else None

    def _is_due(self, seen: History) -> bool:
        """Whether the time has come by the first process's rule."""
        return self._engine.ranks.from_one(lambda: bool(self._rule.due(seen.progress())))

    def _agree_on_rule(self) -> None:
        """Take over the first rank's rule, once, if it comes true at the same step on all; else that rank is asked."""
        first = self._engine.ranks.from_one(lambda: self._rule if type(self._rule) in PURE else None)
        self._rule, self._asks = first or self._rule, first is None

    def expect_epochs(self) -> None:
        """Say that a framework tells every epoch, so that a run which is stopped in its first is no mistake."""
        self._told.epochs = True

    def now(self, batches: Batches) -> Plan:
        """Switch at once, without fading; where that has begun, to the plan that it leads to."""
        return self._apply(batches, None) if self._fading is None else self._end_fading(self._fading, batches)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the plan, if the switch is behind it, and what the rule has seen so far."""
        fading = None if self._fading is None else self._fading.state_dict()
        return {"plan": None if self.plan is None else self.plan.to_json(), "fading": fading, **self._seen.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a saved state; model, optimizers and averaged copy get the saved plan's shape, their own states next.

        So a run is resumed by loading the switch first, then the model, then the optimizers. State that one of
        these was given before goes over to the new parameters where its shapes tell that it is theirs; where they do
        not, a warning says that it starts afresh.
        """
        check_state(state)
        plan = None if state["plan"] is None else Plan.from_json(state["plan"])
        fading = None if state.get("fading") is None else Fading.from_state(state["fading"])
        if plan is None and self.plan is not None:
            raise PlanError("this state is from before the switch, but the model has been switched: build it anew")
        if plan is not None and self.plan is not None:
            check_same(plan, self.plan)
        elif (leads_to := fading.plan if fading is not None else plan) is not None:
            check_leads_on(leads_to, unwrap(self.model))
        if plan is not None and self.plan is None:
            self._engine.reshape_(plan, strict=self.strict)
            self.plan = plan
        self._seen.load_state_dict(state)
        self._fading = fading
        self._told.epochs |= self._seen.epoch > 0 or self.begun

    def look(self, batches: Batches) -> Statistics:
        """Measure what the layers read now, as the switch would; nothing changes."""
        self._engine.sync_buffers_()
        ranks = self._engine.ranks
        own = ranks.together(lambda: opened(batches))
        config, mode = self.options, "batch" if isinstance(self._wish, Budget) else "eval"
        how = {"gradients": config.needs_gradients, "mode": mode, **self.analysis}
        return analyze(self.model, own, forward=self.forward, exclude=config.exclude, group=ranks.group, **how)

    def _call(self) -> Example | None:
        """How the model is called, where an example was given."""
        return None if self.example is None else Example.for_model(unwrap(self.model), self.example, self.forward)

    def _tell(self, epoch: int, stats: Statistics) -> None:
        """Have the first process tell the logger the effective dimensions."""
        ranks, rule, own = self._engine.ranks, dimension_rule(self.options), stats_for(self.options, stats)
        ranks.together(
            lambda: log_dimensions(self.log, epoch, effective_dimensions(own, rule)) if ranks.rank == 0 else None
        )

    def _watch(self, seen: History, stats: Statistics) -> None:
        """Look how far the subspaces have moved since the last time."""
        ranks, config, stats = self._engine.ranks, self.options, stats_for(self.options, stats)
        if seen.subspaces:
            seen.movements.append(ranks.from_one(lambda: movement(seen.subspaces, stats, config)))
        seen.subspaces = ranks.together(lambda: leading_subspaces(stats, config))

    def _begin(self, batches: Batches, stats: Statistics | None) -> Plan | None:
        """Switch, or begin to fade."""
        if not self.fade:
            return self._apply(batches, stats)
        engine = self._engine
        engine.ranks.together(lambda: check_untransformed(self.model))
        batches = engine.ranks.together(lambda: repeatable(batches))
        found = stats or self.look(batches)
        self.statistics = found if self.keep_statistics else None
        fading = Fading(*engine.agree(self._maker(found, batches), found), self.fade)
        engine.try_(fading.plan, fading.bases, found.example, strict=self.strict)  # what cannot work shows now
        self._fading, self._told.epochs = fading, True
        return None

    def _fade(self, fading: Fading, batches: Batches) -> Plan | None:
        if not fading.over:  # otherwise the cut has failed before, and is tried again
            fading.step_(self.model, self.ema)
        return self._end_fading(fading, batches) if fading.over else None

    def _end_fading(self, fading: Fading, batches: Batches) -> Plan:
        plan = self._cut(lambda: (fading.plan, fading.bases), None, batches)
        self._fading = None
        return plan

    def _apply(self, batches: Batches, stats: Statistics | None) -> Plan:
        ranks = self._engine.ranks
        ranks.together(lambda: check_untransformed(self.model))
        if self.recalibrate or self._measures_worth:
            batches = ranks.together(lambda: repeatable(batches))
        found = stats or self.look(batches)
        plan = self._cut(self._maker(found, batches), found, batches)
        self.statistics = found if self.keep_statistics else None
        return plan

    def _cut(self, make: Callable[[], Made], stats: Statistics | None, batches: Batches) -> Plan:
        """Have one process make a plan and all apply it; or none, where anything fails."""
        engine, norms = self._engine, self._recalibration(batches)
        before = engine.before_switch_()
        self.plan = engine.apply_(make, stats, strict=self.strict, then=norms.measure)
        self._told.epochs = True
        norms.write_()
        engine.after_switch(before)
        return self.plan

    def _recalibration(self, batches: Batches) -> Recalibration:
        models = with_average(unwrap(self.model), self.ema) if self.recalibrate else []
        return Recalibration(models, batches, self.forward, self._engine.ranks)

    def _maker(self, stats: Statistics, batches: Batches) -> Callable[[], Made]:
        """How one process makes the plan, once all of them have measured what none of them can alone."""
        wish, taps = self._wish, None
        if isinstance(wish, Budget) and wish.settled().patterns:
            taps = self._engine.look_at_taps(stats, wish)
        return lambda: self._make(stats, batches, taps)

    def _make(self, stats: Statistics, batches: Batches, taps: TapMoments | None) -> Made:
        model, wish = unwrap(self.model), self._wish
        if isinstance(wish, Budget):
            plan = plan_within(model, stats, wish, batches=batches, measured=self.measured, taps=taps)
        else:
            plan = make_plan(model, stats, wish)
        warn_of_nothing(plan, "the switch")
        return plan, find_bases(plan, stats, model)

    @property
    def begun(self) -> bool:
        """Whether the plan is made: the model has switched, or what the cut takes away is fading."""
        return self.plan is not None or self._fading is not None

    @property
    def planned(self) -> Plan | None:
        """The plan that was applied, or the one that fading leads to."""
        return self._fading.plan if self._fading is not None else self.plan

    @property
    def options(self) -> PCNConfig:
        """The configuration, also where a budget chooses the ranks."""
        return config_of(self._wish)

    @property
    def _measures_worth(self) -> bool:
        """Whether the batches are gone over once more to choose ranks."""
        return isinstance(self._wish, Budget) and self._wish.needs_batches
