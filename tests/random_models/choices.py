"""Where random decisions come from: a seed, a list written down before, or Hypothesis' random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """A stream of whole numbers; 0 always means the simplest answer, so that failures shrink towards small models."""

    def __init__(self, source: Callable[[int], int]) -> None:
        self._source = source
        self.taken: list[int] = []

    @classmethod
    def seeded(cls, seed: int) -> Choices:
        return cls(random.Random(seed).randrange)

    @classmethod
    def replayed(cls, values: Sequence[int]) -> Choices:
        """Take the values in order, cut to what is allowed; after the last one, always the simplest."""
        left = iter(values)
        return cls(lambda count: min(next(left, 0), count - 1))

    def below(self, count: int) -> int:
        """Return a number in [0, count)."""
        self.taken.append(self._source(count))
        return self.taken[-1]

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent
