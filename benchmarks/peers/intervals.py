"""Mean differences between paired runs, with 95% intervals by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

# The 97.5% quantiles of Student's t for 1 to 30 degrees of freedom.
QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs; the interval's half is None for a single pair, which says nothing of the spread."""

    mean: float
    half: float | None
    pairs: int

    @property
    def low(self) -> float:
        return -math.inf if self.half is None else self.mean - self.half

    @property
    def high(self) -> float:
        return math.inf if self.half is None else self.mean + self.half

    @property
    def clears_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        """The mean and the interval, marked where it clears zero.

        >>> str(Difference(0.5, 0.2, 5)), str(Difference(0.1, 0.2, 5)), str(Difference(0.5, None, 1))
        ('**+0.50** (+0.30 to +0.70)', '+0.10 (-0.10 to +0.30)', '+0.50 (one pair)')
        """
        if self.half is None:
            return f"{self.mean:+.2f} (one pair)"
        mean = f"**{self.mean:+.2f}**" if self.clears_zero else f"{self.mean:+.2f}"
        return f"{mean} ({self.low:+.2f} to {self.high:+.2f})"


def quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t; beyond the table that of 30, which is a little too wide, not too narrow."""
    return QUANTILES[min(freedom, len(QUANTILES)) - 1]


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """The mean of ours minus theirs over the seeds that both have; None where there is none."""
    seeds = sorted(ours.keys() & theirs.keys())
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    if not differences:
        return None
    mean, pairs = statistics.fmean(differences), len(differences)
    if pairs == 1:
        return Difference(mean, None, 1)
    return Difference(mean, quantile(pairs - 1) * statistics.stdev(differences) / math.sqrt(pairs), pairs)
