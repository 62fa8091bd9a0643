"""A plan within a budget: every step of rank goes to the layer where it is worth most for what it costs."""

from __future__ import annotations

from dataclasses import replace
from glob import escape
from typing import Any

from torch import nn

from pcn.config import LayerRule, PCNConfig
from pcn.errors import ConfigError, TraceError
from pcn.graph import ChannelGraph, trace
from pcn.layers import unwrap
from pcn.planner.allocation import Served
from pcn.planner.budget import Budget
from pcn.planner.channels import Answer, with_channels
from pcn.planner.explained import MANY_TAPS, NO_BATCH, SILENT, nothing_on_offer, with_next_step, with_outputs
from pcn.planner.measured import Measured
from pcn.planner.measuring import measure_costs
from pcn.planner.prices import Prices, added, taken_off
from pcn.planner.question import Question, cut_elsewhere
from pcn.planner.reachable import check_reachable, traced
from pcn.planner.tap_shares import tap_directions, with_many_taps
from pcn.planner.units import MEASURED
from pcn.planner.unspent import unspent
from pcn.plans.cutting import without_classes
from pcn.plans.fit import check_statistics
from pcn.plans.layer_plan import FROZEN, NO_RANK, LayerPlan
from pcn.plans.making import UNCALLED, make_plan
from pcn.plans.plan import Plan
from pcn.plans.ranks import stats_for
from pcn.rewriting.taps import TapMoments, look_at_taps
from pcn.running.example import Batches, Example, Forward
from pcn.statistics import Statistics

WHITENED = 1.0  # docs/trials.md


def fit_budget(
    model: nn.Module,
    stats: Statistics,
    budget: Budget,
    *,
    batches: Batches = (),
    graph: ChannelGraph | None = None,
    measured: Measured | None = None,
) -> PCNConfig:
    """Return the configuration with ranks for every layer so that the whole model stays within the budget.

    A layer to which the budget gives its full width stays as it is, and so does a frozen one. ``batches`` are needed
    where the worth is measured on them; ``measured`` are costs that :func:`pcn.measure_costs` has found already.
    """
    if not isinstance(budget, Budget):
        raise ConfigError(f"budget={budget!r}: give a Budget, such as Budget(params=0.25)")
    check_statistics(stats, unwrap(model))
    if budget.drop_channels:
        raise ConfigError(
            "a configuration cannot say which channels go: make_plan(model, stats, budget) gives the plan"
        )
    check_reachable(model, budget, stats=stats)
    stats = stats_for(budget.config, stats)
    budget, taps, untold = _settled(model, stats, budget)
    graph = graph or _graph(model, stats.example, budget)[0]
    measured = measured or _measured(model, stats.example, budget)
    question = Question.of(model, stats, budget, graph, measured, untold=untold)
    return _as_config(question, question.answer(question.known(stats, batches, taps)))


def plan_within(
    model: nn.Module,
    stats: Statistics,
    budget: Budget,
    *,
    batches: Batches = (),
    graph: ChannelGraph | None = None,
    example: Any = None,
    measured: Measured | None = None,
    taps: TapMoments | None = None,
) -> Plan:
    """Make the plan for a budget; the note of every layer says what more rank would have bought.

    ``taps`` is what they read along :func:`pcn.planner.tap_shares.tap_directions`, where that was looked at already.
    """
    check_reachable(model, budget, stats=stats)
    stats = stats_for(budget.config, stats)
    budget, taps, untold = _settled(model, stats, budget, taps)
    example = _as_example(model, stats.example if example is None else example)
    graph, untraced = (graph, UNCALLED) if graph is not None else _graph(model, example, budget)
    measured = measured or _measured(model, example, budget)
    question = Question.of(model, stats, budget, graph, measured, example, untold)
    known = question.known(stats, batches, taps)
    if budget.drop_channels and graph is not None and example is not None:
        answer = with_channels(question, known, stats, graph, example)
    else:
        served, alone = question.answer(known), question.names if budget.drop_channels else ()
        answer = Answer(served, reasons=dict.fromkeys(alone, untraced), unspent=unspent(question, known, served))
    plan = make_plan(model, stats, _as_config(question, answer.served), graph=graph, example=example)
    if answer.dropped is not None and graph is not None:
        plan = without_classes(plan, graph, answer.dropped, {})
    stuck = {
        name: nothing_on_offer(question, plan.layers[name]) for name, each in answer.served.items() if each.choices < 2
    }
    explained = {name: with_next_step(plan.layers[name], each, stuck.get(name)) for name, each in answer.served.items()}
    for name, layer in plan.layers.items():
        if layer.frozen and layer.reason == NO_RANK and not layer.transformed:
            explained[name] = replace(layer, reason=FROZEN)
    changed = {name: why for name, why in untold.items() if name in explained and explained[name].changed}
    explained |= {name: explained[name].with_note(why) for name, why in changed.items()}
    usage = None if measured is None else measured.expected(plan)
    layers = {name: with_outputs(layer, answer) for name, layer in {**plan.layers, **explained}.items()}
    plan = replace(plan, layers=layers, usage=usage, unspent=answer.unspent)
    return replace(plan, whole=_whole(question, plan))


def _whole(question: Question, plan: Plan) -> dict[str, tuple[int, int]]:
    """What is counted of the whole model before and after a plan: what is trained, and what else is limited."""
    units = dict.fromkeys(["params", *(unit for unit in question.budget.units if unit not in MEASURED)])
    prices, layers = Prices(tuple(units), operations=question.prices.operations), plan.layers.values()
    now = prices.now(question.model, plan)
    others = taken_off(now, added(dict.fromkeys(now, 0), *map(prices.before, layers)))
    after = added(others, *map(prices.after, layers))
    cut = cut_elsewhere(question.model, plan, units)
    return {unit: (now[unit], after[unit] - cut.get(unit, 0)) for unit in units}


def _settled(
    model: nn.Module, stats: Statistics, budget: Budget, taps: TapMoments | None = None
) -> tuple[Budget, TapMoments | None, dict[str, str]]:
    """The budget with nothing left open, what taps read, and the layers of whose taps that says nothing, with why.

    All of these layers' taps are trained; where patterns were asked for, there are none, and they are refused later.
    """
    settled = budget.settled()
    if not settled.patterns:
        return settled, None, {}
    bare = unwrap(model)
    taps = look_at_taps(bare, stats, tap_directions(bare, stats, budget)) if taps is None else taps
    if budget.patterns:
        return settled, taps, {}
    why = NO_BATCH if stats.example is None else SILENT
    silent = {name: why for name, moments in taps.items() if not bool(moments.any())}
    return settled, taps, silent | dict.fromkeys(with_many_taps(bare, stats, budget), MANY_TAPS)


def _as_example(model: nn.Module, example: Any) -> Example | None:
    return None if example is None else Example.for_model(model, example)


def _as_config(question: Question, served: dict[str, Served]) -> PCNConfig:
    config = question.budget.config
    rules = {}
    for name, layer in question.plan.layers.items():
        rule, exact = config.rule_for(name)
        power = _power(layer) if config.precondition is None and rule.precondition is None else rule.precondition
        if name in served:
            option = served[name].option
            chosen = (bool(question.budget.patterns) and rule.kernel_rank is None) or option.rank is None
            patterns = option.kernel_rank if chosen else rule.kernel_rank
            sizes = LayerRule(option.rank, None, rule.order, option.output_rank, power, patterns)
            rules[name] = replace(sizes, sized_for=rule.sized_for, centred=rule.centred)
        elif layer.rank is not None and config.fixes(name) and power:
            rules[name if exact else _glob_of(name)] = replace(rule, precondition=power)
    layers = {**config.layers, **rules}
    return replace(config, rank=None, output_rank=None, layers=layers, sized_for=question.budget.sized_for)


def _power(layer: LayerPlan) -> float:
    """How far a layer's directions are preconditioned where nobody says.

    Large coordinates for directions of little variance let these learn as fast as the others, and let what drifts
    along them weigh more: a batch norm takes that off again, and without one nothing does. The order ``kept_block``
    makes bases of its own.
    """
    return WHITENED if layer.batch_normed and layer.order != "kept_block" else 0.0


def _glob_of(name: str) -> str:
    """A glob for one layer: what is asked of it by a glob may be skipped, and what is asked by name not.

    >>> _glob_of("features.0")
    '[f]eatures.0'
    """
    return f"[{name[:1]}]{escape(name[1:])}"


def _graph(model: nn.Module, example: Example | None, budget: Budget) -> tuple[ChannelGraph | None, str]:
    """The model's graph, or why there is none; a budget of operations is refused without it."""
    if example is None:
        return None, UNCALLED
    if budget.flops is not None:
        return traced(unwrap(model), example), ""
    try:
        return trace(unwrap(model), example), ""
    except TraceError as error:
        return None, str(error)


def _measured(model: nn.Module, example: Any, budget: Budget) -> Measured | None:
    """What a step takes, where the budget asks for that."""
    if not budget.measures:
        return None
    if example is None:
        raise ConfigError(
            "a budget of time or memory needs to run the model, and how it is called is unknown: give "
            "measured=pcn.measure_costs(model, batch, budget)"
        )
    return measure_costs(model, example, budget, times=budget.step_ms is not None)


def measure_first(model: nn.Module, batch: Any, budget: Budget, *, forward: Forward | None = None) -> Measured | None:
    """Measure on one batch what a budget needs to know, if anything, and refuse one that no ranks could meet."""
    if batch is None or not budget.measures:
        return None
    measured = _measured(model, Example.for_model(unwrap(model), batch, forward), budget)
    check_reachable(model, budget, measured)
    return measured
