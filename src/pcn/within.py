"""A plan within a budget: every step of rank goes to the layer where it is worth most for what it costs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import nn

from pcn.budget import Budget, check_reachable
from pcn.config import LayerRule, PCNConfig
from pcn.errors import ConfigError, TraceError
from pcn.example import Batches, Example, Forward, device_of
from pcn.graph import ChannelGraph, trace
from pcn.layers import unwrap
from pcn.plan import LayerPlan, Plan
from pcn.planner.allocation import Served
from pcn.planner.measured import Measured
from pcn.planner.measuring import measure_costs
from pcn.planner.options import Option
from pcn.planner.prices import taken_off
from pcn.planner.question import Question
from pcn.planner.units import amounts
from pcn.planning import make_plan
from pcn.statistics import Statistics


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
    check_reachable(model, budget)
    graph = graph or _traced(model, stats)
    measured = measured or _measured(model, stats.example, budget)
    question = Question.of(model, stats, budget, graph, measured)
    return _as_config(budget, question.answer(stats, batches))


def plan_within(
    model: nn.Module,
    stats: Statistics,
    budget: Budget,
    *,
    batches: Batches = (),
    graph: ChannelGraph | None = None,
    example: Any = None,
    measured: Measured | None = None,
) -> Plan:
    """Make the plan for a budget; the note of every layer says what more rank would have bought."""
    check_reachable(model, budget)
    graph = graph or _traced(model, stats)
    measured = measured or _measured(model, stats.example if example is None else example, budget)
    question = Question.of(model, stats, budget, graph, measured)
    served = question.answer(stats, batches)
    plan = make_plan(model, stats, _as_config(budget, served), graph=graph, example=example)
    explained = {name: _explained(plan.layers[name], each) for name, each in served.items()}
    for name in question.prices.frozen:
        explained[name] = replace(plan.layers[name], reason=plan.layers[name].reason and "its weight is frozen")
    usage = None if measured is None else measured.expected(plan)
    return replace(plan, layers={**plan.layers, **explained}, usage=usage)


def _as_config(budget: Budget, served: dict[str, Served]) -> PCNConfig:
    rules = {
        name: LayerRule(rank=each.option.rank, output_rank=each.option.output_rank) for name, each in served.items()
    }
    return replace(budget.config, rank=None, output_rank=None, layers={**budget.config.layers, **rules})


def _traced(model: nn.Module, stats: Statistics) -> ChannelGraph | None:
    with suppress(TraceError):
        return None if stats.example is None else trace(unwrap(model), stats.example)
    return None


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
    measured = _measured(model, Example.of(batch, forward, device_of(unwrap(model))), budget)
    check_reachable(model, budget, measured)
    return measured


def _explained(layer: LayerPlan, served: Served) -> LayerPlan:
    """A layer's plan with what the next step would have bought, or why it stays whole."""
    if layer.rank is None:
        why = "the budget keeps it whole" if served.choices > 1 else "no form of it would be smaller and no slower"
        return replace(layer, reason=why)
    following = _next(served.option, served.following)
    return replace(layer, note="; ".join(filter(None, (layer.note, following))) or None)


def _next(option: Option, following: Option | None) -> str | None:
    if following is None:
        return None
    what = "all of it" if following.rank is None else f"rank {following.rank}"
    if following.output_rank is not None:
        what += f" with {following.output_rank} trained outputs"
    gained = (following.worth - option.worth) / following.worth
    return f"{what} would be worth {gained:.2%} more, for {amounts(taken_off(following.costs, option.costs))}"
