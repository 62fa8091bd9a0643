"""Measurements as an object: what every layer takes of a training step as it is, and at the ranks that were tried."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import product

from pcn.costs.usage import Expected, Usage
from pcn.errors import ConfigError, FileError, suggest
from pcn.plans.plan import Plan

RankPair = tuple[int | None, int | None]  # rank and output rank (None: all inputs are read, all outputs trained)


@dataclass(frozen=True)
class LayerUsage:
    """What one layer takes: ``whole`` as it is, and in the forms that were tried, a grid of ranks and output ranks.

    In these, directions were read in ``kernel_rank`` patterns of taps each, or by every tap (None).
    """

    whole: Usage
    tried: Mapping[RankPair, Usage] = field(default_factory=dict)
    kernel_rank: int | None = None

    def at(self, rank: int | None, output_rank: int | None = None) -> Usage:
        """What it takes at any rank, between those that were tried; below the lowest, as much as there.

        >>> layer = LayerUsage(Usage(90), {(8, None): Usage(20), (16, None): Usage(40)})
        >>> [layer.at(rank).time_ns for rank in (None, 4, 12, 16)]
        [90, 20, 30, 40]
        """
        if rank is None and output_rank is None:
            return self.whole
        alike = [
            form for form in self.tried if (form[0] is None, form[1] is None) == (rank is None, output_rank is None)
        ]
        pairs = product(_side([r for r, _ in alike], rank), _side([s for _, s in alike], output_rank))
        corners: list[tuple[RankPair, int]] = [((r, s), weight * other) for (r, weight), (s, other) in pairs]
        if not corners:
            raise ConfigError(f"no form like rank {rank}, output rank {output_rank} was tried: measure with the budget")
        return _mixed([(self.tried[form], weight) for form, weight in corners])

    def with_times_scaled(self, part: int, of: int) -> LayerUsage:
        """The same with every time multiplied by ``part / of``, rounded down."""

        def scaled(usage: Usage) -> Usage:
            return replace(usage, time_ns=usage.time_ns * part // of)

        return replace(self, whole=scaled(self.whole), tried={form: scaled(each) for form, each in self.tried.items()})


def _side(tried: Iterable[int | None], x: int | None) -> list[tuple[int | None, int]]:
    """The sizes tried of one side around x, each with its weight; a side that stays has no other."""
    points = sorted({each for each in tried if each is not None})
    return [(None, 1)] if x is None else [*_around(points, x)]


def _around(points: Sequence[int], x: int) -> list[tuple[int, int]]:
    """The points on both sides of x, each with its weight; nothing lies beyond the first and the last."""
    if not points:
        return []
    x = min(max(x, points[0]), points[-1])
    above = bisect_left(points, x)
    if points[above] == x:
        return [(x, 1)]
    low, high = points[above - 1], points[above]
    return [(low, high - x), (high, x - low)]


def _mixed(parts: list[tuple[Usage, int]]) -> Usage:
    """A weighted mean, rounded up."""
    total = sum(weight for _, weight in parts)
    rows = [[weight * amount for amount in astuple(usage)] for usage, weight in parts]
    return Usage(*(-(-sum(column) // total) for column in zip(*rows, strict=True)))


@dataclass(frozen=True)
class Measured:
    """What a training step of a model takes: layer by layer, and the ``rest``, which no choice of ranks changes.

    Made by :func:`pcn.measure_costs`; the same measurements lead to the same plan.
    """

    rest: Usage
    layers: Mapping[str, LayerUsage]
    on: str = ""  # the call that was measured, and the device
    looked_at: tuple[str, ...] | None = None  # the layers that could be transformed, also those that did not run
    state: int | None = None  # numbers that the optimizer keeps for each one that it trains

    @classmethod
    def levelled(cls, whole: Usage, layers: Mapping[str, LayerUsage], on: str) -> Measured:
        """Have layers and rest add up to the whole; layers that take longer alone than the whole model are scaled."""
        alone = sum(layer.whole.time_ns for layer in layers.values())
        if alone > whole.time_ns:
            on += f"; the layers alone took {alone / whole.time_ns:.2f} times as long as the model, and are scaled"
            layers = {name: layer.with_times_scaled(whole.time_ns, alone) for name, layer in layers.items()}
        return cls(whole - sum((layer.whole for layer in layers.values()), Usage()), layers, on)

    @property
    def whole(self) -> Usage:
        """What the model takes as it is: its layers and the rest."""
        return sum((layer.whole for layer in self.layers.values()), self.rest)

    def at(self, name: str, rank: int | None, output_rank: int | None = None) -> Usage:
        """What a layer takes in one form; nothing, if it does not run."""
        return self.layers[name].at(rank, output_rank) if name in self.layers else Usage()

    def expected(self, plan: Plan) -> Expected:
        """What a step takes before and after a plan; channels that it drops are counted as if they stayed."""
        changes = (
            self.at(p.name, p.rank, p.output_rank) - self.at(p.name, None) for p in plan.layers.values() if p.changed
        )
        return Expected(self.whole, sum(changes, self.whole))

    def check_for(self, plan: Plan, free: Iterable[str], *, times: bool, state: int | None) -> None:
        """Raise where something else was measured: another model, other layers, another optimizer, no times."""
        if times and not self.whole.time_ns:
            raise ConfigError("a budget of time, but no times were measured: leave times=False out of measure_costs")
        for name in self.layers:
            if name not in plan.layers:
                raise ConfigError(
                    f"another model was measured: it has {name!r}, this one not{suggest(name, plan.layers)}"
                )
        for name in free:
            if self.looked_at is not None and name not in self.looked_at:
                raise ConfigError(f"{name!r} was left out when costs were measured: measure with this budget")
            if name in self.layers and self.layers[name].kernel_rank != plan.layers[name].kernel_rank:
                raise ConfigError(f"{name!r} was measured with another kernel_rank: measure with this budget")
        if None not in (state, self.state) and state != self.state:
            raise ConfigError(
                f"costs were measured for an optimizer that keeps {self.state} numbers for each one trained, and this "
                f"one keeps {state}: measure with this budget"
            )

    def to_json(self) -> str:
        """The measurements as a text that :meth:`from_json` reads back as equal ones."""
        layers = {
            name: {
                "whole": astuple(layer.whole),
                "tried": [[*form, *astuple(u)] for form, u in layer.tried.items()],
                "kernel_rank": layer.kernel_rank,
            }
            for name, layer in self.layers.items()
        }
        return json.dumps({**asdict(self), "rest": astuple(self.rest), "layers": layers})

    @classmethod
    def from_json(cls, text: str) -> Measured:
        """Read measurements, or raise :class:`FileError` where a text holds something else."""
        try:
            data = json.loads(text)
            layers = {
                name: LayerUsage(
                    Usage(*each["whole"]),
                    {(row[0], row[1]): Usage(*row[2:]) for row in each["tried"]},
                    each.get("kernel_rank"),
                )
                for name, each in data.pop("layers").items()
            }
            names = data.pop("looked_at")
            return cls(Usage(*data.pop("rest")), layers, looked_at=None if names is None else tuple(names), **data)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise FileError(f"these are no measurements ({error}): give the text that Measured.to_json wrote") from None

    def __str__(self) -> str:
        from pcn.planner.measured_table import measured_table

        return measured_table(self)
