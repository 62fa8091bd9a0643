"""What a budget takes nothing from, the largest first: to be said where it cannot be met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from torch import nn

from pcn.costs.count import stored
from pcn.planner.units import UNITS, Costs
from pcn.plans.layer_plan import FROZEN
from pcn.plans.plan import Plan

if TYPE_CHECKING:
    from pcn.planner.budget import Budget

NAMED = 3  # parts that a message names
MUCH = 0.05  # of all that there is: what is less is not why a budget cannot be met
ELSEWHERE = "what is in no layer that could change"
NO_SMALLER = "no form of it on offer is smaller and no slower"
HAS_OTHERS = "PCNConfig(skip_larger=False) has others"


def unmoved(model: nn.Module, plan: Plan, budget: Budget, changing: Container[str], now: Costs) -> dict[str, str]:
    """Say, for each limit, which modules keep much of what it is about, and why; nothing where none do.

    ``changing`` are the layers whose sizes the budget chooses, and ``now`` is what the whole model takes. What is
    frozen is no parameter to a budget. Whose time and memory are is not known beforehand: parameters stand in for them.
    """
    ruled = [layer for layer in plan.layers.values() if layer.changed and budget.config.fixes(layer.name)]
    counted = {
        "params": _numbers(model) | {layer.name: layer.trainable_after for layer in ruled},
        "stored": _numbers(model, all_of_them=True) | {layer.name: layer.stored_after for layer in ruled},
    }
    if "flops" in now:
        counted["flops"] = _operations(plan, now["flops"]) | {layer.name: layer.flops_after or 0 for layer in ruled}
    frozen = {name: FROZEN for name, layer in plan.layers.items() if layer.frozen}
    reasons = {name: layer.reason for name, layer in plan.layers.items()} | plan.left_alone | frozen
    said = {}
    for limit in budget.units:
        unit = limit if limit in counted else "params"
        large = [
            f"{_named(name)} ({UNITS[unit].shown(amount)}{_why(name, reasons, budget)})"
            for name, amount in sorted(counted[unit].items(), key=lambda each: -each[1])
            if name not in changing and amount > MUCH * sum(counted[unit].values())
        ]
        said[limit] = f"; it takes nothing from {' and '.join(large[:NAMED])}" if large else ""
    return said


def _named(name: str) -> str:
    return ELSEWHERE if name == ELSEWHERE else repr(name) if name else "the model itself"


def _why(name: str, reasons: Mapping[str, str | None], budget: Budget) -> str:
    if name == ELSEWHERE:
        return ""
    if name in reasons and budget.config.fixes(name):
        return ": a rule says what it keeps"
    if name in reasons and reasons[name] is None:  # nothing speaks against it, but nothing is gained by it
        return f": {NO_SMALLER}; {HAS_OTHERS}" if budget.config.skip_larger else f": {NO_SMALLER}"
    return f": {reasons.get(name) or 'it is no layer that changes'}"


def _numbers(model: nn.Module, *, all_of_them: bool = False) -> dict[str, int]:
    """How many numbers each module trains, or stores, itself; one that several share counts once, for the first."""
    found: Counter[str] = Counter()
    for name, tensor in stored(model):
        owner = f".{name}".rpartition(".")[0].partition(".parametrizations.")[0].removeprefix(".")
        found[owner] += tensor.numel() if all_of_them or tensor.requires_grad else 0
    return found


def _operations(plan: Plan, now: int) -> dict[str, int]:
    """The operations of every layer, and of all else together, as products of attention."""
    layers = {name: layer.flops_before or 0 for name, layer in plan.layers.items()}
    return layers | {ELSEWHERE: now - sum(layers.values())}
