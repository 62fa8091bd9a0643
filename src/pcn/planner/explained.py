"""What a plan within a budget says about every layer: what more rank would have bought, and why outputs stay or go."""

from __future__ import annotations

from dataclasses import replace

from pcn.planner.allocation import Served
from pcn.planner.channels import Answer
from pcn.planner.options import Option
from pcn.planner.prices import taken_off
from pcn.planner.units import amounts
from pcn.plans.layer_plan import LayerPlan


def with_next_step(layer: LayerPlan, served: Served) -> LayerPlan:
    """A layer's plan with what the next step would have bought, or why it stays whole."""
    if layer.rank is None:
        why = "the budget keeps it whole" if served.choices > 1 else "no form of it would be smaller and no slower"
        return replace(layer, reason=why)
    following = _next(served.option, served.following)
    return replace(layer, note="; ".join(filter(None, (layer.note, following))) or None)


def with_outputs(layer: LayerPlan, answer: Answer) -> LayerPlan:
    """A layer's plan with what the outputs that go are worth, or why none do."""
    reason = layer.output_reason or answer.reasons.get(layer.name)
    note = "; ".join(filter(None, (layer.note, answer.notes.get(layer.name)))) or None
    return replace(layer, note=note, output_reason=reason)


def _next(option: Option, following: Option | None) -> str | None:
    if following is None:
        return None
    what = "all of it" if following.rank is None else f"rank {following.rank}"
    if following.output_rank is not None:
        what += f" with {following.output_rank} trained outputs"
    gained = (following.worth - option.worth) / following.worth
    return f"{what} would be worth {gained:.2%} more, for {amounts(taken_off(following.costs, option.costs))}"
