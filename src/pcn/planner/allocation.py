"""Handing a budget out: every layer starts small, then the best bargain of all is served until nothing fits."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pcn.errors import ConfigError
from pcn.planner.least import Steps, least
from pcn.planner.options import Option, bargains, rate
from pcn.planner.prices import added, taken_off
from pcn.planner.units import UNITS, Costs, amounts
from pcn.tables import shorten

Offers = Mapping[str, list[Option]]
_Bid = tuple[float, float, str, Option]  # negated: worth per price, worth; then the layer, which has one bid
ROUNDS = 12  # in which the prices of several limits come into balance, by smaller and smaller steps
STEEP, CALMER = 4.0, 0.75
LEAST = "even with every layer at its lowest rank: the least would be"
IN_VAIN = "no rank on offer takes less than its layer does now"


@dataclass(frozen=True)
class Room:
    """What the whole model may cost, in every unit that is limited, and what all that is not on offer takes of it.

    Of several limits the one that is short should count for more: ``weights`` are those of their shares in a price.
    ``now`` is what the model takes as it is; ``steps``, layers that would change if they were not ``frozen``, or what
    is ``kept`` as it is (:func:`pcn.planner.unmoved.unmoved`) may be why no ranks could meet a limit: to be said then.
    """

    limits: Costs
    others: Costs = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    now: Costs = field(default_factory=dict)
    steps: Steps = field(default_factory=Steps)
    frozen: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)

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

    def excess(self, costs: Costs) -> float:
        """By how much they are more than there is, as shares added up."""
        return sum(max(0.0, share - 1) for share in self.shares(costs).values())

    @cached_property
    def left(self) -> Costs:
        """What there is for the offers."""
        return {unit: limit - self.others.get(unit, 0) for unit, limit in self.limits.items()}

    def check_each_limit(self, offers: Offers) -> None:
        """Raise when not even the cheapest of every offer fits, counted for each limit by itself."""
        cheapest = least(offers.values(), self.limits)
        self._check_least({unit: cheapest[unit] + self.others.get(unit, 0) for unit in self.limits})

    def _check_least(self, needed: Costs) -> None:
        short = {unit: amount - self.limits[unit] for unit, amount in needed.items() if amount > self.limits[unit]}
        if short:
            limits = amounts({unit: self.limits[unit] for unit in short})
            reachable = " and ".join(UNITS[unit].at_least(needed[unit], self.now.get(unit)) for unit in short)
            said = f"the budget of {limits} is {amounts(short)} too small"
            advice = self.steps.advice({unit: needed[unit] for unit in short}, self.now)
            if all(UNITS[unit].measured and needed[unit] >= self.now.get(unit, math.inf) for unit in short):
                advice = advice if self.steps.nothing_else else ""  # where lower ranks are on offer, these are in vain
                raise ConfigError(f"{said}, and {IN_VAIN}: the least is {reachable}{self._unmoved(short)}{advice}")
            raise ConfigError(f"{said}, {LEAST} {reachable}{self._unmoved(short)}{advice}")

    def _unmoved(self, short: Costs) -> str:
        """Say which weights a budget takes nothing from; as they do not train, they are no parameters to it either."""
        what = "neither count nor change" if "params" in short else "do not change"
        frozen = f"; frozen weights ({shorten(list(self.frozen))}) {what}" if self.frozen else ""
        return frozen + "".join(dict.fromkeys(self.kept.get(unit, "") for unit in short))


@dataclass(frozen=True)
class Served:
    """What a layer got out of how many choices, and what it would have got next."""

    option: Option
    following: Option | None
    choices: int


def hand_out(offers: Offers, room: Room) -> dict[str, Served]:
    """Choose an option for every layer so that together they fit and are worth most, as far as greed finds it.

    Whichever option buys most for its price, among all that still fit, is taken next. With one limit, more room is
    never worth less. Of several, all count with weights that grow where little is left, and then each alone once:
    what is worth most in all is the answer.
    """
    check_some_fit(offers, room)
    start = next(filter(_fits, _cheapest(offers, room)))
    if len(room.limits) == 1:
        return _served(offers, _greedy(offers, start, room))
    found = _weighed(room, lambda weighted: _greedy(offers, start, weighted))
    return _served(offers, max(found, key=lambda chosen: chosen.worth))


def fits(offers: Offers, room: Room) -> bool:
    """Whether an option of every layer is found that together meet all limits."""
    return all(offers.values()) and any(map(_fits, _cheapest(offers, room)))


def check_some_fit(offers: Offers, room: Room) -> None:
    """Raise where none are: because of one limit by itself, or of several together."""
    room.check_each_limit(offers)
    if not fits(offers, room):
        found = min(_cheapest(offers, room), key=lambda chosen: room.excess(chosen.costs))
        needed = {unit: amount + room.others.get(unit, 0) for unit, amount in found.costs.items()}
        closest = " and ".join(UNITS[unit].at_least(amount, room.now.get(unit)) for unit, amount in needed.items())
        raise ConfigError(
            f"no ranks were found that meet all limits of the budget together, {amounts(room.limits)}: the closest "
            f"take {closest}"
        )


def _weighed(room: Room, choose: Callable[[Room], _Chosen]) -> Iterator[_Chosen]:
    """Yield what is chosen with weights that grow, round by round, where much is used, and with each limit alone."""
    weights = dict.fromkeys(room.limits, 1.0)
    for number in range(ROUNDS):
        yield (found := choose(replace(room, weights=weights)))
        used = room.shares(found.costs)
        weights = {unit: weight * used[unit] ** (STEEP * CALMER**number) for unit, weight in weights.items()}
        most = max(weights.values())
        weights = {unit: weight / most for unit, weight in weights.items()} if most > 0 else weights
    for unit in room.limits:
        yield choose(replace(room, weights={other: float(other == unit) for other in room.limits}))


def _cheapest(offers: Offers, room: Room) -> Iterator[_Chosen]:
    """Yield the cheapest option of every layer, with all kinds of weights for the limits, and a mixture of these."""

    def choose(weighted: Room) -> _Chosen:
        options = {name: min(of, key=lambda o: (weighted.price(o), -o.worth)) for name, of in offers.items()}
        return _Chosen(options, weighted)

    found = []
    for chosen in _weighed(room, choose):
        found.append(chosen)
        yield chosen
    yield _mixture(found)


def _mixture(found: list[_Chosen]) -> _Chosen:
    """What is nearest to the limits, and nearer with each layer that changes to what it is elsewhere.

    Weights change their mind about all layers of the same sizes at once.
    """
    nearest = min(found, key=lambda chosen: chosen.room.excess(chosen.costs))
    mixed, room = _Chosen(dict(nearest.options), nearest.room), nearest.room
    others = {(name, id(option)): (name, option) for each in found for name, option in each.options.items()}
    while others and (excess := room.excess(mixed.costs)) > 0:
        swap = min(others.values(), key=lambda change: room.excess(mixed.costs_with(*change)))
        if room.excess(mixed.costs_with(*swap)) >= excess:
            break
        mixed.change(*swap)
    return mixed


def _fits(chosen: _Chosen) -> bool:
    return chosen.room.holds(chosen.costs)


def _greedy(offers: Offers, start: _Chosen, room: Room) -> _Chosen:
    chosen = _Chosen(dict(start.options), room)
    ladders = {name: bargains(options, room.price) for name, options in offers.items()}
    freed = True
    while freed:  # a layer may have given up some of one limit for more of another: then all bid again
        freed, queue = False, list[_Bid]()
        for name in offers:
            _push(queue, _bid(name, chosen, offers[name], ladders[name]))
        while queue:
            *_, name, option = heapq.heappop(queue)
            if chosen.fits(name, option):
                freed = freed or chosen.frees(name, option)
                chosen.change(name, option)
            # Where that did not fit any more, the layer bids again with the best that does.
            _push(queue, _bid(name, chosen, offers[name], ladders[name]))
    return chosen


def _served(offers: Offers, chosen: _Chosen) -> dict[str, Served]:
    return {
        name: Served(option, _following(option, bargains(offers[name], chosen.room.price)), len(offers[name]))
        for name, option in chosen.options.items()
    }


class _Chosen:
    """An option for every layer, and what they cost together."""

    def __init__(self, options: dict[str, Option], room: Room) -> None:
        self.options, self.room = options, room
        self.costs = added(dict.fromkeys(room.limits, 0), *(option.costs for option in options.values()))

    @property
    def worth(self) -> float:
        return sum(option.worth for option in self.options.values())

    def fits(self, name: str, option: Option) -> bool:
        """Whether there is room for another option of a layer."""
        return self.room.holds(self.costs_with(name, option))

    def frees(self, name: str, option: Option) -> bool:
        """Whether another option of a layer takes less of some limit."""
        return any(option.costs[unit] < amount for unit, amount in self.options[name].costs.items())

    def change(self, name: str, option: Option) -> None:
        """Choose another option for a layer."""
        self.costs, self.options[name] = self.costs_with(name, option), option

    def costs_with(self, name: str, option: Option) -> Costs:
        """What they would cost with another option of a layer."""
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
