"""Whether a budget can be met at all: known from the model alone, long before there are statistics."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from pcn.budget import Budget
from pcn.errors import ConfigError, TraceError
from pcn.graph import ChannelGraph, trace
from pcn.layers import canonical_weight, unwrap
from pcn.planner.allocation import Room
from pcn.planner.measured import Measured
from pcn.planner.prices import NOTHING, Prices
from pcn.planner.units import MEASURED, Costs
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.making import make_plan
from pcn.plans.plan import Plan
from pcn.running.example import Example


def check_reachable(
    model: nn.Module, budget: Budget, measured: Measured | None = None, example: Example | None = None
) -> None:
    """Raise when every layer at its lowest rank would still be too much: before any statistics, by what is known.

    Operations are known where there is an example, on which the model is traced.
    """
    plan, now, least = _counted(unwrap(model), budget, measured, example)
    limits = {unit: limit for unit in now if (limit := budget.limit(unit, now[unit])) is not None}
    room = Room(limits, now=now)
    if not plan.transformed and not room.holds(least):
        alone = {layer.name: layer.reason for layer in plan.layers.values()} | plan.left_alone
        reasons = "".join(f"; {name!r}: {reason}" for name, reason in list(alone.items())[:3])
        raise ConfigError(f"the budget cannot be met, as no layer of the model can be changed{reasons}")
    room.check_holds(least)


def _counted(
    model: nn.Module, budget: Budget, measured: Measured | None, example: Example | None
) -> tuple[Plan, dict[str, int], dict[str, int]]:
    """Which layers could change, what a model takes now of what is known, and with every layer at its lowest rank."""
    graph = None if budget.flops is None or example is None else traced(model, example)
    known = {"params": True, "flops": graph is not None} | dict.fromkeys(MEASURED, measured is not None)
    config = replace(budget.config, rank=1.0, layers={}, skip_larger=False)
    plan = make_plan(model, None, config, graph=graph, example=None if graph is None else example)
    prices = Prices(tuple(unit for unit in budget.units if known[unit]), measured or NOTHING)
    now, least = (dict(prices.now(model, plan)) for _ in range(2))
    for layer in plan.transformed:
        if canonical_weight(model.get_submodule(layer.name)).requires_grad:
            before, lowest = prices.before(layer), _lowest(layer, budget, prices)
            least = {unit: amount - before[unit] + lowest[unit] for unit, amount in least.items()}
    return plan, now, least


def traced(model: nn.Module, example: Example) -> ChannelGraph:
    """The graph of a model, which a budget of operations cannot do without."""
    try:
        return trace(model, example)
    except TraceError as error:
        raise ConfigError(
            f"a budget of FLOPs needs the model's graph, which could not be traced: give params; {error}"
        ) from error


def _lowest(layer: LayerPlan, budget: Budget, prices: Prices) -> Costs:
    """The least that a layer could cost in each unit; a rule of its own may ask for any number."""
    if budget.config.mentions(layer.name):
        return dict.fromkeys(prices.units, 0)
    lowest = replace(layer, rank=min(budget.rank_step, layer.in_features // layer.groups))
    outputs = min(budget.rank_step, layer.out_features // layer.groups)
    forms = [lowest, replace(lowest, output_rank=outputs)] if budget.two_sided else [lowest]
    smaller = [form for form in forms if not (budget.config.skip_larger and form.is_larger)]
    costs = [prices.before(layer), *map(prices.after, smaller)]
    return {unit: min(cost[unit] for cost in costs) for unit in prices.units}
