"""What a plan within a budget says about every layer: what more rank would have bought, and why outputs stay or go."""

from __future__ import annotations

from dataclasses import replace

from pcn.planner.allocation import Served
from pcn.planner.channels import Answer
from pcn.planner.least import lowest
from pcn.planner.options import Option
from pcn.planner.prices import taken_off
from pcn.planner.question import Question
from pcn.planner.units import MEASURED, UNITS, amounts, costlier
from pcn.plans.layer_plan import LayerPlan

NO_SMALLER = "no form of it would be smaller and no slower"
NO_BATCH = "every tap is trained, as patterns of taps are measured on a batch, and these statistics hold none"
SILENT = "every tap is trained, as it read little but its mean in the first batch, on which patterns are measured"
MANY_TAPS = "every tap is trained, as it has too many of them to look for patterns"


def with_next_step(layer: LayerPlan, served: Served, alone: str | None = None) -> LayerPlan:
    """A layer's plan with what the next step would have bought, or why it stays whole.

    ``alone`` is why it had nothing to choose from, where that is so, as :func:`nothing_on_offer` says it.
    """
    if not layer.transformed:
        return replace(layer, reason=alone or "the budget keeps it whole")
    if layer.rank is None:
        layer = replace(layer, reason="the budget gives it a basis for its outputs alone")
    following = _next(served.option, served.following, layer.taps)
    return layer if following is None else layer.with_note(following)


def nothing_on_offer(question: Question, planned: LayerPlan) -> str:
    """Why a layer has no form but what it is: what smaller ones take more of, or which rule leaves none."""
    budget, layer = question.budget, replace(question.plan.layers[planned.name], kept_outputs=planned.kept_outputs)
    smaller, whole = _smaller(question, layer), question.prices.before(layer)
    dearer = {unit for option in smaller for unit in costlier(option.costs, whole)}
    if more := [UNITS[unit].of for unit in MEASURED if unit in dearer]:
        return f"any smaller form of it would take more {' or '.join(more)} than now"
    if _smaller(replace(question, budget=replace(budget, floor=0.0)), layer):
        return f"{NO_SMALLER}, with floor={budget.floor:g} of its directions"
    patterns = bool(budget.patterns) and layer.name not in question.untold
    finer = replace(budget.finest, floor=0.0, patterns=patterns)
    found = any(not option.whole for option in lowest(layer, finer, question.prices))
    return f"{NO_SMALLER}, in steps of {budget.rank_step} directions" if found else NO_SMALLER


def _smaller(question: Question, layer: LayerPlan) -> list[Option]:
    """The forms that a budget of counted things alone would offer."""
    found = question.forms(layer, only_smaller=question.budget.config.skip_larger, allow_costlier=True)
    return [option for option in found if not option.whole]


def with_outputs(layer: LayerPlan, answer: Answer) -> LayerPlan:
    """A layer's plan with what the outputs that go are worth, or why none do."""
    layer = replace(layer, output_reason=layer.output_reason or answer.reasons.get(layer.name))
    return layer.with_note(answer.notes[layer.name]) if layer.name in answer.notes else layer


def _next(option: Option, following: Option | None, taps: int) -> str | None:
    """What one option more would be worth and cost; nothing where there is no share to name."""
    if following is None or option.worth <= 0:
        return None
    reads = "all inputs" if following.rank is None else f"rank {following.rank}"
    what = "all of it" if following.whole else reads
    if following.kernel_rank != option.kernel_rank and following.rank is not None:
        what += f" in {following.kernel_rank or taps} of {taps} patterns"
    if following.output_rank is not None:
        what += f" with {following.output_rank} trained outputs"
    elif option.output_rank is not None and following.rank is not None:
        what += " with all outputs trained"
    more = taken_off(following.costs, option.costs)
    saved = {unit: -amount for unit, amount in more.items() if amount < 0}
    spent = {unit: amount for unit, amount in more.items() if amount > 0}
    said = [f"{what} would be worth {(following.worth - option.worth) / option.worth:.2%} more"]
    said += [f"saving {amounts(saved)}"] if saved else []
    said += [f"for {amounts(spent)}"] if spent else []
    return ", ".join(said)
