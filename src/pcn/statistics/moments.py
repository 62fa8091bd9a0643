"""Streaming sums over one activation: how many samples, their mean, and what is kept of their covariance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from pcn.errors import StatisticsError
from pcn.statistics.pieces import add_gram_, exact_products, pieces, suits_kernel


class Moments(ABC):
    """What is kept of an activation with g groups of w channels; every sum is in fp64.

    A block is (entries, g, w, positions), see :func:`pcn.statistics.blocks.as_block`.
    """

    groups: int
    width: int
    count: int = 0
    from_zero = False  # whether squares and products are of distances from 0, and not from the mean

    @abstractmethod
    def add(self, block: Tensor) -> Moments:
        """Take a block in; the moments to go on with come back, in another form when this one has grown too large."""

    @abstractmethod
    def sample_mean(self) -> Tensor:
        """The mean of the samples, (g, w)."""

    def mean(self) -> Tensor:
        """What squares and products are about, (g, w): the samples' mean, or 0."""
        mean = self.sample_mean()
        return torch.zeros_like(mean) if self.from_zero else mean

    def mean_within(self) -> Tensor:
        """The mean (g, w) as far as it is not taken off, by whose squares and products those about 0 are larger."""
        mean = self.sample_mean()
        return mean * (self.count / self.degrees) ** 0.5 if self.from_zero else torch.zeros_like(mean)

    @abstractmethod
    def variances(self) -> Tensor:
        """The variance of each channel, (g, w)."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """The covariance of each group, (g, w, w), with 1 / (samples - 1)."""

    def second_moment(self) -> Tensor:
        """The mean of x xᵀ of each group, (g, w, w): about 0 and not about the mean."""
        mean = self.mean()
        return self.covariance() * (self.degrees / self.count) + mean.unsqueeze(-1) * mean.unsqueeze(-2)

    def about_zero(self) -> Self:
        """The same samples, with squares and products of their distances from 0 in place of those from their mean.

        Nothing is copied: no further samples may be taken in.
        """
        about = copy(self)
        about.from_zero = True
        return about

    @abstractmethod
    def apply(self, rows: Tensor, group: int) -> Tensor:
        """Multiply rows (k, w) by the covariance of one group without forming it."""

    @property
    @abstractmethod
    def resolution(self) -> float:
        """The smallest eigenvalue, relative to the largest, that rounding does not drown."""

    @abstractmethod
    def finite(self) -> Tensor:
        """Whether all sums are finite: one boolean on the device, so that asking does not wait for it."""

    @property
    def shown(self) -> int:
        """The most directions that the samples can show: a mean that is taken off takes one."""
        return self.count if self.from_zero else max(0, self.count - 1)

    @property
    def degrees(self) -> int:
        """The number of samples minus one, by which sums of squares are divided."""
        if self.count < 2:
            raise StatisticsError(
                f"{self.count} sample was seen, but a covariance needs at least 2: give more batches, or exclude this"
            )
        return self.count - 1


class Shifted(Moments):
    """Sums over samples from which a pilot mean (g, w) is subtracted first, so that large means cost no precision."""

    def __init__(self, pilot: Tensor) -> None:
        self.groups, self.width = pilot.shape
        self.pilot = pilot
        self.total = torch.zeros_like(pilot, dtype=torch.float64)  # sum of x - pilot

    @cached_property
    def _shift(self) -> bool:
        return bool(self.pilot.any())  # waits for the device, which the kernel need not

    def add(self, block: Tensor) -> Self:
        with exact_products(block.device):
            for piece in pieces(block, self.pilot, self._shift):
                self.count += piece.shape[0] * piece.shape[3]
                self.total += piece.sum((0, 3))
                self._take(piece)
        return self

    @abstractmethod
    def _take(self, piece: Tensor) -> None:
        """Add the products of a shifted piece (summands, g, w, samples)."""

    @abstractmethod
    def sums(self) -> list[Tensor]:
        """The tensors that add up over parts with the same pilot, as an all-reduce does it; the count is the rest."""

    @abstractmethod
    def sums_about(self, pilot: Tensor) -> list[Tensor]:
        """The same sums about another pilot mean, given in fp64 on this side's device."""

    @abstractmethod
    def with_sums(self, pilot: Tensor, count: int, sums: list[Tensor]) -> Self:
        """Moments of this kind with other contents."""

    def brought_to(self, pilot: Tensor) -> list[Tensor]:
        """The sums about another pilot mean; its own tensors where that is the same one."""
        pilot = pilot.double().to(self.pilot.device)
        return self.sums() if torch.equal(self.pilot.double(), pilot) else self.sums_about(pilot)

    def merge(self, other: Shifted) -> Self:
        """Return the moments of both sets of samples; neither side changes."""
        theirs = other.brought_to(self.pilot)
        sums = [mine + yours.to(mine.device) for mine, yours in zip(self.sums(), theirs, strict=True)]
        merged = self.with_sums(self.pilot, self.count + other.count, sums)
        merged.from_zero = self.from_zero
        return merged

    def sample_mean(self) -> Tensor:
        return self.pilot.double() + self.total / self.count

    @property
    def resolution(self) -> float:
        return 4 * torch.finfo(self.pilot.dtype).eps


class Covariance(Shifted):
    """The whole covariance, (g, w, w).

    >>> Covariance(pilot=torch.zeros(1, 2)).add(torch.tensor([[[[0.0, 2.0], [1.0, 1.0]]]])).covariance()
    tensor([[[2., 0.],
             [0., 0.]]], dtype=torch.float64)
    """

    def __init__(self, pilot: Tensor) -> None:
        super().__init__(pilot)
        self.scatter = self.total.new_zeros(self.groups, self.width, self.width)  # sum of (x - pilot)(x - pilot)ᵀ

    def add(self, block: Tensor) -> Self:
        if not suits_kernel(block, self.pilot):
            return super().add(block)
        from pcn.statistics.gram_kernel import block_sums

        total, scatter = block_sums(block, self.pilot)
        self.count += block.shape[0] * block.shape[3]
        self.total += total
        self.scatter += scatter
        return self

    def _take(self, piece: Tensor) -> None:
        add_gram_(self.scatter, piece)

    def covariance(self) -> Tensor:
        centred = self.scatter - self.total.unsqueeze(-1) * (self.total / self.count).unsqueeze(-2)
        covariance = ((centred + centred.mT) / 2).div_(self.degrees)
        if self.from_zero:
            mean = self.mean_within()
            covariance += mean.unsqueeze(-1) * mean.unsqueeze(-2)
        return covariance

    def variances(self) -> Tensor:
        centred = self.scatter.diagonal(dim1=-2, dim2=-1) - self.total.square() / self.count
        return centred.clamp_min(0) / self.degrees + self.mean_within().square()

    def apply(self, rows: Tensor, group: int) -> Tensor:
        total, mean = self.total[group], self.mean_within()[group]
        centred = (rows @ self.scatter[group] - torch.outer(rows @ total, total / self.count)) / self.degrees
        return centred.addr_(rows @ mean, mean) if self.from_zero else centred

    def finite(self) -> Tensor:
        # An entry off the diagonal is no larger than the two on it that it belongs to.
        diagonal = self.scatter.diagonal(dim1=-2, dim2=-1)
        return torch.isfinite(self.total).all() & torch.isfinite(diagonal).all()

    def sums(self) -> list[Tensor]:
        return [self.total, self.scatter]

    def sums_about(self, pilot: Tensor) -> list[Tensor]:
        step = self.pilot.double() - pilot
        cross = step.unsqueeze(-1) * (self.total + self.count / 2 * step).unsqueeze(-2)
        return [self.total + self.count * step, self.scatter + cross + cross.mT]

    def with_sums(self, pilot: Tensor, count: int, sums: list[Tensor]) -> Self:
        made = type(self).__new__(type(self))
        made.groups, made.width, made.pilot, made.count = self.groups, self.width, pilot, count
        made.total, made.scatter = sums
        return made
