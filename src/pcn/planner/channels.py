"""Output channels chosen together with ranks: those go that are worth less than the ranks which their price buys."""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pcn.errors import ConfigError
from pcn.graph import ChannelGraph
from pcn.planner.allocation import Served
from pcn.planner.items import Items
from pcn.planner.prices import added, taken_off
from pcn.planner.question import Known, Question
from pcn.planner.staying import why_outputs_stay
from pcn.planner.unspent import CLEARLY, unspent
from pcn.plans.cutting import cut_failure, hard_coded
from pcn.plans.wiring import Wiring
from pcn.running.example import Example
from pcn.statistics import Statistics

SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2)  # of the price of all channels: what is tried
HALVINGS = 3  # of the way from the best of them to the next smaller one, where much of the budget would be left


@dataclass(frozen=True)
class Answer:
    """What every layer gets, which channel classes go for it, and what there is to say about outputs, by layer."""

    served: dict[str, Served]
    dropped: Tensor | None = None
    notes: Mapping[str, str] = field(default_factory=dict)  # what those hold that go
    reasons: Mapping[str, str] = field(default_factory=dict)  # why they stay where they could have gone
    unspent: str | None = None  # what is left of the budget, and why

    @property
    def worth(self) -> float:
        """What all layers got, added up."""
        return sum(each.option.worth for each in self.served.values())


def with_channels(question: Question, known: Known, stats: Statistics, graph: ChannelGraph, example: Example) -> Answer:
    """Choose ranks and channels: ranks alone where no channels could go for more worth, or the model would not run."""
    alone = Answer(question.answer(known))
    items = Items(question, alone.served, stats, graph)
    stuck: dict[int, str] = {}
    best, tried = _best(items, known, alone, stuck)
    while best.dropped is not None and (why := cut_failure(question.model, example, graph, best.dropped)) is not None:
        stuck |= hard_coded(question.model, example, graph, items.wiring.losing(best.dropped), best.dropped, why)
        best, tried = _best(items, known, alone, stuck)
    reasons = {**why_outputs_stay(items, best.dropped, stuck, tried), **_reasons(items.wiring, stuck)}
    return replace(best, reasons=reasons, unspent=_unspent(items, known, best))


def _best(items: Items, known: Known, alone: Answer, stuck: Mapping[int, str]) -> tuple[Answer, bool]:
    """The answer that is worth most of all that are tried, ranks alone among them, and whether others were."""
    found = {share: answer for share in SHARES if (answer := _without(items, known, share, stuck)) is not None}
    best = max([alone, *found.values()], key=lambda answer: answer.worth)
    high = next((share for share, answer in found.items() if answer is best), None)
    if high is None or not _clearly_left(items, best):
        return best, bool(found)
    low = high - SHARES[0]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        answer = _without(items, known, middle, stuck)
        if answer is not None and answer.worth > best.worth:
            best, high = answer, middle
        else:
            low = middle
    return best, True


def _without(items: Items, known: Known, share: float, stuck: Container[int]) -> Answer | None:
    """The answer without the channels that such a share of the price of all takes; None where there is none."""
    dropped = cheapest(items, share, stuck)
    cut = items.question.without(items.graph, dropped)
    if dropped.any() and all(cut.offers.values()):
        with suppress(ConfigError):  # forms that are larger than the layer may not fit
            return Answer(cut.answer(known, items.left(dropped)), dropped, items.notes(dropped))
    return None


def _clearly_left(items: Items, answer: Answer) -> bool:
    """Whether more than a little of every limit stays unused, so that fewer channels might have gone."""
    assert answer.dropped is not None
    room = items.question.without(items.graph, answer.dropped).room
    used = added(dict.fromkeys(room.left, 0), *(each.option.costs for each in answer.served.values()))
    return all(amount > CLEARLY * room.limits[unit] for unit, amount in taken_off(room.left, used).items())


def _unspent(items: Items, known: Known, best: Answer) -> str | None:
    if best.dropped is None:
        return unspent(items.question, known, best.served)
    return unspent(items.question.without(items.graph, best.dropped), known, best.served, items.left(best.dropped))


def cheapest(items: Items, share: float, stuck: Container[int] = ()) -> Tensor:
    """Say which classes go for a share of the price of all: in steps of channels, and some always stay."""
    limit = share * float(items.price.sum())
    families = items.wiring.families
    left = {number: len(family) for number, family in enumerate(families)}
    wanted: list[int] = []
    for cls in items.cheap.tolist():
        mine = [number for number, family in enumerate(families) if cls in family]
        if cls in stuck or any(left[number] == 1 for number in mine):
            continue
        limit -= float(items.price[cls])
        if limit < 0:
            break
        wanted.append(cls)
        left.update({number: left[number] - 1 for number in mine})
    dropped = torch.zeros(items.wiring.class_count, dtype=torch.bool)
    sizes = items.wiring.sizes
    for group in items.wiring.coupled():
        own = [cls for cls in wanted if cls in group]
        dropped[_in_steps(own, sum(sizes[cls] for cls in group), sizes, items.question.budget.step)] = True
    return dropped


def _in_steps(wanted: list[int], width: int, sizes: Mapping[int, int], step: int) -> list[int]:
    """The most of the first that leave a multiple of the step, and at least one, of so many coupled channels."""
    most = 0
    for number, cls in enumerate(wanted, 1):
        width -= sizes[cls]
        if width > 0 and width % step == 0:
            most = number
    return wanted[:most]


def _reasons(wiring: Wiring, stuck: Mapping[int, str]) -> dict[str, str]:
    """Why layers keep outputs that could have gone."""
    held = {name: [stuck[cls] for cls in classes.tolist() if cls in stuck] for name, classes in wiring.outputs.items()}
    return {name: why[0] for name, why in held.items() if why}
