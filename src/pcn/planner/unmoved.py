"""What a budget takes nothing from, the largest first: to be said where it cannot be met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import TYPE_CHECKING

from torch import nn

from pcn.plans.plan import Plan

if TYPE_CHECKING:
    from pcn.planner.budget import Budget

NAMED = 3  # parts that a message names
MUCH = 0.05  # of all that is trained: what is less is not why a budget cannot be met


def unmoved(model: nn.Module, plan: Plan, budget: Budget, changing: Container[str]) -> str:
    """Say which modules keep much of what is trained, and why; nothing where none do.

    ``changing`` are the layers whose sizes the budget chooses. Frozen weights are no part of it: they do not count.
    """
    trained = _trained(model)
    reasons = {name: layer.reason for name, layer in plan.layers.items()} | plan.left_alone
    large = [
        name
        for name in sorted(trained, key=lambda name: -trained[name])
        if name not in changing and trained[name] > MUCH * sum(trained.values())
    ]
    said = [
        f"{repr(name) if name else 'the model itself'} ({trained[name]:,} parameters: {_why(name, reasons, budget)})"
        for name in large[:NAMED]
    ]
    return f"; it takes nothing from {' and '.join(said)}" if said else ""


def _why(name: str, reasons: dict[str, str | None], budget: Budget) -> str:
    if name in reasons and budget.config.fixes(name):
        return "a rule says what it keeps"
    return reasons.get(name) or "it is no layer that changes"


def _trained(model: nn.Module) -> Counter[str]:
    """How many parameters each module trains itself; one that several share counts once, for the first of them."""
    trained: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        trained[name.rpartition(".")[0]] += parameter.numel() if parameter.requires_grad else 0
    return trained
