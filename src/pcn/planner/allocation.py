"""Handing a budget out: every layer starts small, then the best bargain of all is served until nothing fits."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from pcn.errors import ConfigError
from pcn.planner.options import Option, Price, bargains, rate

Offers = Mapping[str, list[Option]]


@dataclass(frozen=True)
class Room:
    """What may be spent; None where there is no limit."""

    params: int | None
    flops: int | None

    def price(self, option: Option) -> float:
        """The share of what there is that an option takes, limits added up."""
        limits = ((option.params, self.params), (option.flops, self.flops))
        return sum(cost / max(limit, 1) for cost, limit in limits if limit is not None)

    def holds(self, params: int, flops: int) -> bool:
        return (self.params is None or params <= self.params) and (self.flops is None or flops <= self.flops)


@dataclass(frozen=True)
class Served:
    """What a layer got out of how many choices, and what it would have got next."""

    option: Option
    following: Option | None
    choices: int


def hand_out(offers: Offers, room: Room) -> dict[str, Served]:
    """Choose an option for every layer so that together they fit and are worth most, as far as greed finds it."""
    ladders = {name: bargains(options, room.price) for name, options in offers.items()}
    chosen = _start(offers, room)
    above = {name: [o for o in ladders[name] if o.worth > option.worth] for name, option in chosen.options.items()}
    ladders = {name: [chosen.options[name], *options] for name, options in above.items()}
    queue = [_bid(name, ladder, 1, room) for name, ladder in ladders.items() if len(ladder) > 1]
    heapq.heapify(queue)
    while queue:
        _, name, number = heapq.heappop(queue)
        if chosen.take(name, ladders[name][number]) and number + 1 < len(ladders[name]):
            heapq.heappush(queue, _bid(name, ladders[name], number + 1, room))
    while _take_one_more(chosen, offers):
        pass
    return {
        name: Served(option, _following(option, ladders[name]), len(offers[name]))
        for name, option in chosen.options.items()
    }


def _start(offers: Offers, room: Room) -> _Chosen:
    """The cheapest option of every layer, by all limits together or, if those do not fit, by one of them."""
    orders: tuple[Price, ...] = (room.price, lambda option: option.params, lambda option: option.flops)
    starts = []
    for cost in orders:
        least = {name: min(options, key=lambda o: (cost(o), -o.worth)) for name, options in offers.items()}
        starts.append(_Chosen(least, room))
    fitting = [start for start in starts if room.holds(start.params, start.flops)]
    if not fitting:
        raise ConfigError(_too_small(room, starts[0]))
    return fitting[0]


class _Chosen:
    """An option for every layer, and what they cost together."""

    def __init__(self, options: dict[str, Option], room: Room) -> None:
        self.options, self.room = options, room
        self.params = sum(option.params for option in options.values())
        self.flops = sum(option.flops for option in options.values())

    def take(self, name: str, option: Option) -> bool:
        """Choose another option for a layer, if that fits."""
        old = self.options[name]
        params, flops = self.params + option.params - old.params, self.flops + option.flops - old.flops
        if not self.room.holds(params, flops):
            return False
        self.options[name], self.params, self.flops = option, params, flops
        return True


def _bid(name: str, ladder: list[Option], number: int, room: Room) -> tuple[float, str, int]:
    return -rate(ladder[number - 1], ladder[number], room.price), name, number


def _take_one_more(chosen: _Chosen, offers: Offers) -> bool:
    """Spend what is left on the best option between two bargains; False when nothing better fits."""
    better = [
        (-rate(chosen.options[name], option, chosen.room.price), name, number)
        for name, options in offers.items()
        for number, option in enumerate(options)
        if option.worth > chosen.options[name].worth
    ]
    return any(chosen.take(name, offers[name][number]) for _, name, number in sorted(better))


def _following(option: Option, ladder: list[Option]) -> Option | None:
    return next((other for other in ladder if other.worth > option.worth), None)


def _too_small(room: Room, chosen: _Chosen) -> str:
    short = []
    if room.params is not None and chosen.params > room.params:
        short.append(f"{chosen.params - room.params:,} parameters")
    if room.flops is not None and chosen.flops > room.flops:
        short.append(f"{chosen.flops - room.flops:,} FLOPs")
    return f"the budget is {' and '.join(short)} too small, even with every layer at its lowest rank"
