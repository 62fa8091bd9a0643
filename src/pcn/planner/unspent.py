"""What a plan leaves of a budget although it would buy more, and why: another limit, or what no layer may become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from pcn.planner.allocation import Served
from pcn.planner.options import Option
from pcn.planner.prices import added, taken_off
from pcn.planner.question import Known, Question
from pcn.planner.units import UNITS, Costs, costlier
from pcn.plans.layer_plan import LayerPlan

CLEARLY = 0.02  # of a limit: less may be left by steps of rank
ROUNDING = 1e-6  # of what a layer is worth: less is no gain
NOTHING_MORE = "by what is known of them no layer gains anything by more"
LARGER = "no layer may get larger or slower{beside} (PCNConfig(skip_larger=False) lets them)"
BESIDE = ", not counting the weights that keep_dropped=True keeps beside them"


class _Step(NamedTuple):
    """A form of a layer that is worth more than what it got, and how much more that costs."""

    layer: LayerPlan
    option: Option
    more: Costs
    on_offer: bool

    def short_of(self, rest: Costs) -> list[str]:
        """The limits that have no room for it."""
        return [unit for unit, amount in self.more.items() if amount > rest[unit]]


def unspent(
    question: Question, known: Known, served: Mapping[str, Served], left: Mapping[str, Tensor] | None = None
) -> str | None:
    """Say which limits would by themselves have bought one more step of a layer, and what did not let them.

    ``left`` is as in :meth:`Question.answer`.
    """
    room = question.room
    rest = taken_off(room.left, added(dict.fromkeys(room.left, 0), *(each.option.costs for each in served.values())))
    shares = {unit: amount / max(room.limits[unit], 1) for unit, amount in rest.items()}
    clearly = sorted((unit for unit in shares if shares[unit] > CLEARLY), key=lambda unit: -shares[unit])
    steps = list(_steps(question, known, served, left or {})) if clearly else []
    if clearly and not steps and not all(each.option.whole for each in served.values()):
        return f"{_amounts(clearly, rest, shares)} stay unused, as {NOTHING_MORE}"
    unused: list[str] = []
    why: dict[str, None] = {}
    for unit in clearly:
        reasons = _reasons(question, steps, unit, rest, shares.keys() - clearly)
        # Of two limits in each other's way only one is said to be left, that of which more is.
        if reasons and _full(unit) not in why and not any(_full(other) in reasons for other in unused):
            unused.append(unit)
            why |= dict.fromkeys(reasons)
    return f"{_amounts(unused, rest, shares)} stay unused, as {' and '.join(why)}" if unused else None


def _amounts(units: list[str], rest: Costs, shares: Mapping[str, float]) -> str:
    return " and ".join(f"{UNITS[unit].shown(rest[unit])} ({shares[unit]:.1%} of {unit})" for unit in units)


def _steps(
    question: Question, known: Known, served: Mapping[str, Served], left: Mapping[str, Tensor]
) -> Iterator[_Step]:
    for layer in question.layers:
        now, offered = served[layer.name].option, set(map(_sizes, question.offers[layer.name]))
        options = question.forms(layer, only_smaller=False, allow_costlier=True)
        for option in known[layer.name].of(options, question.room.price, left.get(layer.name)):
            if option.worth > (1 + ROUNDING) * now.worth:
                yield _Step(layer, option, taken_off(option.costs, now.costs), _sizes(option) in offered)


def _reasons(question: Question, steps: list[_Step], unit: str, rest: Costs, full: Set[str]) -> list[str]:
    """What is in the way of the closest step that a limit alone would have bought; nothing where there is none.

    Limits that are clearly unspent themselves are hardly what binds, those that are ``full`` are. Where steps were on
    offer, it is not that others are not; where none were, each layer's closest may have a reason of its own.
    """

    def distance(step: _Step) -> tuple[bool, bool, float]:
        return not full >= set(step.short_of(rest)), not step.on_offer, step.more[unit]

    could = sorted((step for step in steps if 0 < step.more[unit] <= rest[unit]), key=distance)
    if could and could[0].on_offer:
        return [*map(_full, could[0].short_of(rest))]
    closest = {step.layer.name: step for step in reversed(could) if distance(step)[:2] == distance(could[0])[:2]}
    return [*dict.fromkeys(reason for step in closest.values() for reason in _why_not(question, step, rest))]


def _why_not(question: Question, step: _Step, rest: Costs) -> Iterator[str]:
    short = step.short_of(rest)
    yield from map(_full, short)
    yield from _withheld(question, step, short)


def _withheld(question: Question, step: _Step, short: list[str]) -> Iterator[str]:
    """Why a step is not on offer; a limit that is ``short`` of it anyway says enough."""
    rank, output_rank, kernel_rank = _sizes(step.option)
    form = replace(step.layer, rank=rank, output_rank=output_rank, kernel_rank=kernel_rank)
    if question.budget.config.skip_larger and (form.is_larger or form.is_slower):
        yield LARGER.format(beside=BESIDE if form.keep_dropped else "")
    if not question.allow_costlier:
        whole = question.prices.before(step.layer)
        dearer = [unit for unit in costlier(step.option.costs, whole) if unit not in short]
        yield from (f"no layer may take more {UNITS[unit].of} than now" for unit in dearer)


def _sizes(option: Option) -> tuple[int | None, int | None, int | None]:
    return option.rank, option.output_rank, option.kernel_rank


def _full(unit: str) -> str:
    return f"{unit} has no room for more"
