"""What a training step takes: time, and memory of each kind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass

MIB = 2**20
MS = 10**6  # nanoseconds in a millisecond
PARTS = ("weights", "gradients", "optimizer", "activations")


def shown(amount: float, places: int = 1) -> str:
    """A number with so many places behind the point, or more where less than two digits of it would be seen.

    >>> shown(1234.56), shown(0.5), shown(0.01234), shown(0)
    ('1,234.6', '0.50', '0.012', '0.0')
    """
    if amount > 0:
        places = max(places, 1 - math.floor(math.log10(amount)))
    return f"{amount:,.{places}f}"


@dataclass(frozen=True)
class Usage:
    """What a step (forward, backward) or a layer's part of it takes: whole nanoseconds and bytes, which add up exactly.

    >>> Usage(time_ns=5, weights_bytes=8) + Usage(time_ns=1, gradients_bytes=8)
    Usage(time_ns=6, weights_bytes=8, gradients_bytes=8, optimizer_bytes=0, activations_bytes=0)
    """

    time_ns: int = 0  # 0 where no time was taken
    weights_bytes: int = 0  # parameters and buffers
    gradients_bytes: int = 0
    optimizer_bytes: int = 0  # its state
    activations_bytes: int = 0  # what autograd keeps for the backward pass, parameters not counted again

    @property
    def memory_bytes(self) -> int:
        """All of them together."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Expected:
    """What a training step takes before and after a plan."""

    before: Usage
    after: Usage

    def rows(self) -> Iterator[tuple[str, float, float]]:
        """Yield (what, before, after) in milliseconds and MiB, memory in parts; time only where it was taken."""
        if self.before.time_ns:
            yield "ms for a step, forward and backward", self.before.time_ns / MS, self.after.time_ns / MS
        yield "MiB in training", self.before.memory_bytes / MIB, self.after.memory_bytes / MIB
        for part in PARTS:
            yield f"MiB of {part}", *self._mib(part)

    def lines(self) -> list[str]:
        """The same in words."""
        parts = ", ".join(
            f"{part} {shown(before)} -> {shown(after)}" for part in PARTS for before, after in [self._mib(part)]
        )
        whole = [row for row in self.rows() if not row[0].startswith("MiB of")]
        said = [
            f"{shown(before, 2)} -> {shown(after, 2)} {what} ({after / max(before, 1e-9):.1%})"
            for what, before, after in whole
        ]
        return [*said[:-1], f"{said[-1]}: {parts}"]

    def _mib(self, part: str) -> tuple[float, float]:
        before, after = (getattr(usage, f"{part}_bytes") / MIB for usage in (self.before, self.after))
        return before, after
