"""Whether a budget can be met at all: known from the model alone, long before there are statistics."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from pcn.config import PCNConfig
from pcn.errors import ConfigError, TraceError
from pcn.graph import ChannelGraph, trace
from pcn.layers import unwrap
from pcn.planner.allocation import Room, check_some_fit, fits
from pcn.planner.budget import Budget
from pcn.planner.least import Steps, is_narrow, lowest
from pcn.planner.measured import Measured
from pcn.planner.prices import NOTHING, Prices, added, operations, taken_off
from pcn.planner.units import MEASURED
from pcn.planner.unmoved import NO_SMALLER, unmoved
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.making import make_plan
from pcn.plans.plan import Plan
from pcn.plans.ranks import unmeasured
from pcn.running.example import Example
from pcn.statistics import Statistics


def check_reachable(
    model: nn.Module,
    budget: Budget,
    measured: Measured | None = None,
    example: Example | None = None,
    stats: Statistics | None = None,
) -> None:
    """Raise when every layer at its lowest rank would still be too much, by what is known before ranks are chosen.

    Operations are known where there is an example, on which the model is traced, and layers that were never called
    where there are statistics. All channels are counted, also where some may be dropped: the planner drops them only
    from ranks that fit by themselves. Where a rule drops some, what goes with them is not known: nothing is foretold.
    """
    if any(rule.keep_outputs is not None for rule in budget.config.layers.values()):
        return
    model, budget = unwrap(model), budget.settled()
    plan, prices = _foreseen(model, budget, measured, example, stats)
    config = budget.config
    free = [layer for layer in plan.transformed if not layer.frozen or config.fixes(layer.name)]
    now = prices.now(model, plan)
    others = taken_off(now, added(dict.fromkeys(now, 0), *map(prices.before, free)))
    offers = {layer.name: lowest(layer, budget, prices) for layer in free}
    limits = {unit: limit for unit in now if (limit := budget.limit(unit, now[unit])) is not None}
    frozen = tuple(layer.name for layer in plan.transformed if layer.frozen and not config.fixes(layer.name))
    ruled = {layer.name for layer in free if config.fixes(layer.name)}
    changing = {name for name in ruled if config.rule_for(name)[0].needs_statistics}  # by how much is not known yet
    own = [layer for layer in free if layer.name not in ruled]
    changing |= {layer.name for layer in own if is_narrow(layer, budget) or len(offers[layer.name]) > 1}
    kept = unmoved(model, plan, budget, changing, now)
    room = Room(limits, others, now=now, steps=Steps.of(budget, free, prices, others), frozen=frozen, kept=kept)
    if not plan.transformed and not fits(offers, room):
        alone = {layer.name: layer.reason for layer in plan.layers.values()} | plan.left_alone
        reasons = "".join(f"; {name!r}: {reason}" for name, reason in list(alone.items())[:3])
        raise ConfigError(f"the budget cannot be met, as no layer of the model can be changed{reasons}")
    check_some_fit(offers, room)


def _foreseen(
    model: nn.Module,
    budget: Budget,
    measured: Measured | None,
    example: Example | None,
    stats: Statistics | None,
) -> tuple[Plan, Prices]:
    """Which layers could change, and prices in the units that are known."""
    graph = None if budget.flops is None or example is None else traced(model, example)
    known = {"params": True, "stored": True, "flops": graph is not None} | dict.fromkeys(MEASURED, measured is not None)
    rules = budget.config.layers.items()
    told = {name: replace(rule, rank=1.0, output_rank=None) if rule.needs_statistics else rule for name, rule in rules}
    config = replace(budget.config, rank=1.0, layers=told, skip_larger=False)
    plan = make_plan(model, None, config, graph=graph, example=None if graph is None else example)
    staying = {name: NO_SMALLER for name, layer in plan.layers.items() if _is_skipped(layer, budget.config)}
    staying |= {name: why for name in plan.layers if (why := unmeasured(name, stats)) is not None}
    stay = {
        name: replace(plan.layers[name], rank=None, output_rank=None, kernel_rank=None, reason=why)
        for name, why in staying.items()
    }
    plan = replace(plan, layers={**plan.layers, **stay})
    units = tuple(unit for unit in budget.units if known[unit])
    whole = operations(model, example) if "flops" in units else None
    return plan, Prices(units, measured or NOTHING, whole)


def _is_skipped(layer: LayerPlan, config: PCNConfig) -> bool:
    """Whether a layer will stay although a glob asks for a rank, as that would make it larger."""
    rule, exact = config.rule_for(layer.name)
    sure = config.fixes(layer.name) and not rule.needs_statistics
    return sure and not exact and config.skip_larger and layer.transformed and layer.is_larger


def traced(model: nn.Module, example: Example) -> ChannelGraph:
    """The graph of a model, which a budget of operations cannot do without."""
    try:
        return trace(model, example)
    except TraceError as error:
        raise ConfigError(
            f"a budget of FLOPs needs the model's graph, which could not be traced: give params; {error}"
        ) from error
