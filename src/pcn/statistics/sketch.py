"""What is kept of an activation too wide for its covariance: the covariance's image of a few test vectors."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from pcn.errors import StatisticsError
from pcn.statistics.eigen import nystrom, with_fixed_signs
from pcn.statistics.moments import Shifted

DEFAULT_RANK = 512  # directions that a sketch is good for when nobody says how many are wanted


class Sketch(Shifted):
    """The sums Y = sum of x (xᵀ test) for test vectors (g, w, l): memory w l, and parts still add up.

    Random test vectors give a first estimate of the leading directions; a second pass whose test vectors are these
    directions refines it.
    """

    def __init__(self, pilot: Tensor, test: Tensor) -> None:
        super().__init__(pilot)
        self.test = test.to(pilot)
        self.squares = torch.zeros_like(self.total)
        self.image = torch.zeros_like(test, dtype=torch.float64)

    @classmethod
    def random(cls, pilot: Tensor, max_rank: int | None, seed: int) -> Self:
        """A sketch with seeded test vectors, the same on every worker and device."""
        groups, width = pilot.shape
        rank = DEFAULT_RANK if max_rank is None else max_rank
        columns = min(width, rank + max(32, rank))  # the surplus lets the last wanted directions converge
        test = torch.randn(width, columns, generator=torch.Generator().manual_seed(seed), device="cpu")
        return cls(pilot, test.to(pilot).expand(groups, -1, -1))

    def _take(self, piece: Tensor) -> None:
        self.squares += piece.square().sum((0, 3))
        self.image += (piece @ (self.test.mT @ piece).mT).sum(0)

    def variances(self) -> Tensor:
        centred = (self.squares - self.total.square() / self.count).clamp_min(0) / self.degrees
        return centred + self.mean_within().square()

    def covariance(self) -> Tensor:
        raise StatisticsError(
            f"its {self.width} channels are too many for a covariance and {self.count} samples too many to keep: "
            "only the leading directions are known"
        )

    def apply(self, rows: Tensor, group: int) -> Tensor:
        """Multiply by what the leading directions hold of the covariance: nothing else of it is known."""
        values, vectors = (found[group].to(rows) for found in self.leading())
        return (rows @ vectors * values) @ vectors.mT

    def leading(self) -> tuple[Tensor, Tensor]:
        """Estimate the leading eigenvalues (g, l), descending, and eigenvectors (g, w, l).

        Test vectors that were made for directions about the mean tell little of the mean itself, which is known
        exactly: about 0 it joins what they have found as one more direction.
        """
        test = self.test.double()
        along = self.total.unsqueeze(-2) @ test / self.count
        image = (self.image - self.total.unsqueeze(-1) * along) / self.degrees
        values, vectors = nystrom(test, image, self.resolution)
        if not self.from_zero:
            return values, vectors
        factor = torch.cat([vectors * values.sqrt().unsqueeze(-2), self.mean_within().unsqueeze(-1)], -1)
        turn, singular, _ = torch.linalg.svd(factor, full_matrices=False)
        return singular.square(), with_fixed_signs(turn)

    def refined(self) -> Sketch:
        """An empty sketch for another pass over the samples, its test vectors the directions found so far."""
        return Sketch(self.pilot, self.leading()[1])

    def finite(self) -> Tensor:
        return torch.isfinite(self.total).all() & torch.isfinite(self.squares).all()

    def sums(self) -> list[Tensor]:
        return [self.total, self.squares, self.image]

    def sums_about(self, pilot: Tensor) -> list[Tensor]:
        step = self.pilot.double() - pilot
        total, half = self.total, self.total + self.count / 2 * step
        test = self.test.double()
        image = self.image + step.unsqueeze(-1) * (half.unsqueeze(-2) @ test)
        image += half.unsqueeze(-1) * (step.unsqueeze(-2) @ test)
        return [total + self.count * step, self.squares + 2 * step * half, image]

    def merge(self, other: Shifted) -> Self:
        if not isinstance(other, Sketch) or not torch.equal(other.test.to(self.test.device), self.test):
            raise StatisticsError(
                "sketches with different test vectors do not add up: analyze every part with passes=1 and the same "
                "seed and max_rank"
            )
        return super().merge(other)

    def with_sums(self, pilot: Tensor, count: int, sums: list[Tensor]) -> Self:
        made = type(self).__new__(type(self))
        made.groups, made.width, made.pilot, made.count = self.groups, self.width, pilot, count
        made.test = self.test
        made.total, made.squares, made.image = sums
        return made
