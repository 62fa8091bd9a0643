"""Handing a budget out: every layer starts small, then the best bargain of all is served until nothing fits."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pcn.errors import ConfigError
from pcn.planner.floor import Steps
from pcn.planner.options import Option, bargains, rate
from pcn.planner.prices import added, taken_off
from pcn.planner.units import UNITS, Costs, amounts
from pcn.plans.table import shorten

Offers = Mapping[str, list[Option]]
_Bid = tuple[float, float, str, Option]  # what it does not buy per price and in all, and for which layer: one bid each
ROUNDS = 12  # in which the prices of several limits come into balance, by smaller and smaller steps
STEEP, CALMER = 4.0, 0.75
LEAST = "even with every layer at its lowest rank: the least would be"
IN_VAIN = "no rank of any layer takes less than the layer does now"


@dataclass(frozen=True)
class Room:
    """What the whole model may cost, in every unit that is limited, and what all that is not on offer takes of it.

    Of several limits the one that is short should count for more: ``weights`` are those of their shares in a price.
    ``now`` is what the model takes as it is; ``steps``, or layers that would change if they were not ``frozen``, may be
    why no ranks could meet a limit: to be said then.
    """

    limits: Costs
    others: Costs = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    now: Costs = field(default_factory=dict)
    steps: Steps = field(default_factory=Steps)
    frozen: tuple[str, ...] = ()

    def price(self, option: Option) -> float:
        """What an option takes of the one limit, in its own unit; of several, its shares of what there is, added up."""
        if len(self.left) == 1:  # whole numbers, so that what is the better bargain does not depend on the room
            return option.costs[next(iter(self.left))]
        return sum(self.weights.get(unit, 1.0) * share for unit, share in self.shares(option.costs).items())

    def shares(self, costs: Costs) -> dict[str, float]:
        """What costs are of what there is."""
        return {unit: costs[unit] / max(left, 1) for unit, left in self.left.items()}

    def holds(self, costs: Costs) -> bool:
        """Whether so much fits beside the others."""
        return all(costs[unit] <= left for unit, left in self.left.items())

    @cached_property
    def left(self) -> Costs:
        """What there is for the offers."""
        return {unit: limit - self.others.get(unit, 0) for unit, limit in self.limits.items()}

    def check_reachable(self, offers: Offers) -> None:
        """Raise when not even the cheapest of every offer fits, counted for each limit by itself."""
        self.check_holds(
            {unit: sum(min(o.costs[unit] for o in options) for options in offers.values()) for unit in self.limits}
        )

    def check_holds(self, costs: Costs) -> None:
        """Raise when so much, the least that could be had, does not fit."""
        least = {unit: costs[unit] + self.others.get(unit, 0) for unit in self.limits}
        short = {unit: amount - self.limits[unit] for unit, amount in least.items() if amount > self.limits[unit]}
        if short:
            limits = amounts({unit: self.limits[unit] for unit in short})
            reachable = " and ".join(UNITS[unit].at_least(least[unit], self.now.get(unit)) for unit in short)
            said = f"the budget of {limits} is {amounts(short)} too small"
            if all(UNITS[unit].measured and least[unit] >= self.now.get(unit, math.inf) for unit in short):
                raise ConfigError(f"{said}, and {IN_VAIN}: the least is {reachable}{self._unmoved(short)}")
            advice = self.steps.advice({unit: least[unit] for unit in short}, self.now)
            raise ConfigError(f"{said}, {LEAST} {reachable}{self._unmoved(short)}{advice}")

    def _unmoved(self, short: Costs) -> str:
        """Say which layers a budget takes nothing from; those that do not train do not count as parameters either."""
        what = "neither count nor change" if "params" in short else "do not change"
        return f"; frozen layers ({shorten(list(self.frozen))}) {what}" if self.frozen else ""


@dataclass(frozen=True)
class Served:
    """What a layer got out of how many choices, and what it would have got next."""

    option: Option
    following: Option | None
    choices: int


def hand_out(offers: Offers, room: Room) -> dict[str, Served]:
    """Choose an option for every layer so that together they fit and are worth most, as far as greed finds it.

    Whichever option buys most for its price, among all that still fit, is taken next. With one limit, more room is
    never worth less. Of several, each counts alone once, and then all with weights that grow where little is left: what
    is worth most in all is the answer.
    """
    start = _start(offers, room)
    if len(room.limits) == 1:
        return _greedy(offers, start, room)
    found = [_greedy(offers, start, replace(room, weights=_only(unit, room))) for unit in room.limits]
    weights = dict.fromkeys(room.limits, 1.0)
    for number in range(ROUNDS):
        found.append(_greedy(offers, start, replace(room, weights=weights)))
        used = room.shares(added(dict.fromkeys(room.limits, 0), *(each.option.costs for each in found[-1].values())))
        weights = {unit: weight * used[unit] ** (STEEP * CALMER**number) for unit, weight in weights.items()}
        most = max(weights.values())
        weights = {unit: weight / most for unit, weight in weights.items()} if most > 0 else weights
    return max(found, key=lambda served: sum(each.option.worth for each in served.values()))


def _only(unit: str, room: Room) -> dict[str, float]:
    return {other: float(other == unit) for other in room.limits}


def _greedy(offers: Offers, start: dict[str, Option], room: Room) -> dict[str, Served]:
    chosen = _Chosen(dict(start), room)
    ladders = {name: bargains(options, room.price) for name, options in offers.items()}
    queue: list[_Bid] = []
    for name in offers:
        _push(queue, _bid(name, chosen, offers[name], ladders[name]))
    while queue:
        *_, name, option = heapq.heappop(queue)
        # What is left only shrinks: a bid that fits no more gives way to that layer's best one that does.
        chosen.take(name, option)
        _push(queue, _bid(name, chosen, offers[name], ladders[name]))
    return {
        name: Served(option, _following(option, ladders[name]), len(offers[name]))
        for name, option in chosen.options.items()
    }


def _start(offers: Offers, room: Room) -> dict[str, Option]:
    """The cheapest option of every layer, by all limits together or, if those do not fit, by one of them."""
    room.check_reachable(offers)
    starts = []
    orders: list[Callable[[Option], float]] = [room.price]
    orders += [lambda option, unit=unit: option.costs[unit] for unit in room.limits]  # type: ignore[misc]
    for cost in orders:
        least = {name: min(options, key=lambda o: (cost(o), -o.worth)) for name, options in offers.items()}
        starts.append(_Chosen(least, room))
    fitting = [start for start in starts if room.holds(start.costs)]
    if not fitting:
        raise ConfigError(
            "no ranks were found that meet all limits of the budget together: the lowest take "
            f"{amounts(starts[0].costs)}, where there are {amounts(room.left)} for them"
        )
    return fitting[0].options


class _Chosen:
    """An option for every layer, and what they cost together."""

    def __init__(self, options: dict[str, Option], room: Room) -> None:
        self.options, self.room = options, room
        self.costs = added(dict.fromkeys(room.limits, 0), *(option.costs for option in options.values()))

    def fits(self, name: str, option: Option) -> bool:
        """Whether there is room for another option of a layer."""
        return self.room.holds(self._with(name, option))

    def take(self, name: str, option: Option) -> None:
        """Choose another option for a layer, if that fits."""
        if self.fits(name, option):
            self.costs, self.options[name] = self._with(name, option), option

    def _with(self, name: str, option: Option) -> Costs:
        return taken_off(added(self.costs, option.costs), self.options[name].costs)


def _bid(name: str, chosen: _Chosen, options: list[Option], ladder: list[Option]) -> _Bid | None:
    """The option of a layer that buys most for its price among those that fit; None when none is better."""
    now, price = chosen.options[name], chosen.room.price
    best = _following(now, ladder)
    on_ladder = any(now is rung for rung in ladder)
    if best is None or not on_ladder or not chosen.fits(name, best):  # otherwise no option between buys more
        better = [option for option in options if option.worth > now.worth and chosen.fits(name, option)]
        best = max(better, key=lambda option: (rate(now, option, price), option.worth), default=None)
    return None if best is None else (-rate(now, best, price), now.worth - best.worth, name, best)


def _push(queue: list[_Bid], bid: _Bid | None) -> None:
    if bid is not None:
        heapq.heappush(queue, bid)


def _following(option: Option, ladder: list[Option]) -> Option | None:
    return next((other for other in ladder if other.worth > option.worth), None)
