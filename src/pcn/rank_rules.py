"""Rank rules: how a layer's rank follows from the spectrum of its input, or from its width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol, runtime_checkable

from pcn.errors import ConfigError


class SpectrumLike(Protocol):
    """What a rank rule may ask of a layer's input; see :class:`pcn.statistics.Spectrum`."""

    @property
    def width(self) -> int: ...
    def count_above(self, variance: float) -> int: ...
    def count_explaining(self, share: float) -> int: ...


@runtime_checkable
class RankRule(Protocol):
    """Anything that turns the spectrum of a layer's input into a rank."""

    def rank(self, spectrum: SpectrumLike) -> int: ...


def is_number(value: object) -> bool:
    """Say whether a value is a finite number, and not True or False."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Threshold:
    """Keep the directions whose variance is strictly greater than ``variance``, the paper's tau; at least one."""

    variance: float

    def __post_init__(self) -> None:
        if not (is_number(self.variance) and self.variance >= 0):
            raise ConfigError(f"Threshold({self.variance!r}): the variance must be finite and at least 0")

    def rank(self, spectrum: SpectrumLike) -> int:
        return max(1, spectrum.count_above(self.variance))


@dataclass(frozen=True)
class Fixed:
    """Keep exactly ``count`` directions (per group, for a grouped convolution)."""

    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ConfigError(f"rank={self.count!r}: give a whole number of at least 1, or a fraction of the width")

    def rank(self, spectrum: SpectrumLike) -> int:
        return self.count


@dataclass(frozen=True)
class Fraction:
    """Keep this fraction of the width, rounded to the nearest whole number, at least 1."""

    fraction: float

    def __post_init__(self) -> None:
        if not (is_number(self.fraction) and 0 < self.fraction <= 1):
            raise ConfigError(f"Fraction({self.fraction!r}): the fraction must lie in (0, 1]")

    def rank(self, spectrum: SpectrumLike) -> int:
        return max(1, round(self.fraction * spectrum.width))


@dataclass(frozen=True)
class ExplainedVariance:
    """Keep the fewest directions that together hold this share of the variance."""

    share: float

    def __post_init__(self) -> None:
        if not (is_number(self.share) and 0 < self.share <= 1):
            raise ConfigError(f"ExplainedVariance({self.share!r}): the share must lie in (0, 1]")

    def rank(self, spectrum: SpectrumLike) -> int:
        return spectrum.count_explaining(self.share)


Rank = RankRule | int | float


def as_rank_rule(rank: Rank) -> RankRule:
    """Turn 50 into ``Fixed(50)`` and 0.5 into ``Fraction(0.5)``; rules pass through."""
    if isinstance(rank, type):
        raise ConfigError(f"rank={rank.__name__} is a class: give a rule made from it, such as {rank.__name__}(...)")
    if isinstance(rank, RankRule) and callable(rank.rank):
        return rank
    if isinstance(rank, Integral) and not isinstance(rank, bool):  # numpy's whole numbers too
        return Fixed(int(rank))
    if isinstance(rank, Real) and not isinstance(rank, bool):
        return Fraction(float(rank))
    raise ConfigError(f"rank={rank!r}: give a whole number, a fraction of the width or a rank rule")
