"""The samples of a wide activation themselves, kept while they are fewer than its channels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pcn.layers import LINEAR
from pcn.statistics.blocks import as_block, rows_of
from pcn.statistics.moments import Covariance, Moments
from pcn.statistics.pieces import pilot_mean

SAMPLES_BYTES = 2**30
PIECE = 2**20  # numbers that are brought to fp64 at a time


class Samples(Moments):
    """Raw rows (n, g w), in the precision in which they came; what is asked of them is worked out in fp64."""

    def __init__(self, groups: int, width: int, parts: list[Tensor]) -> None:
        self.groups, self.width, self.parts = groups, width, parts
        self.count = sum(len(rows) for rows in parts)
        self.total = torch.stack([rows.sum(0, dtype=torch.float64).to(parts[0].device) for rows in parts]).sum(0)

    @classmethod
    def of(cls, block: Tensor) -> Samples:
        """Copy a block, because what stands in it may change after the layer was called."""
        rows = rows_of(block).clone(memory_format=torch.contiguous_format)
        return cls(block.shape[1], block.shape[2], [rows])

    def add(self, block: Tensor) -> Samples:
        return self.merge(Samples.of(block))

    def merge(self, other: Samples) -> Samples:
        """Return both sets of samples; neither side changes."""
        joined = Samples.__new__(Samples)
        joined.groups, joined.width, joined.parts = self.groups, self.width, self.parts + other.parts
        joined.count, joined.total = self.count + other.count, self.total + other.total.to(self.total.device)
        joined.from_zero = self.from_zero
        return joined

    def has_room(self, more: int) -> bool:
        """Whether this many further samples may be kept as they are."""
        return fits(self.count + more, self.groups, self.width, self.parts[0].dtype)

    def blocks(self) -> list[Tensor]:
        """The samples as blocks for other moments to take in."""
        return [as_block(rows, LINEAR, self.groups) for rows in self.parts]

    def centred(self, group: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """One group's samples minus their mean, or as they are about 0, (n, w)."""
        whole = self.total.new_empty(self.count, self.width, dtype=dtype)
        start = 0
        for rows in self._rows(group):
            self._centre(rows, group, out=whole[start : start + len(rows)])
            start += len(rows)
        return whole

    def pieces(self, group: int) -> Iterator[Tensor]:
        """Yield the same in pieces that stay in the cache; each is gone when the next one comes."""
        room = self.total.new_empty(max(1, PIECE // self.width), self.width)
        for rows in self._rows(group):
            for piece in rows.split(len(room)):
                yield self._centre(piece, group, out=room[: len(piece)])

    def _rows(self, group: int) -> Iterator[Tensor]:
        channels = slice(group * self.width, (group + 1) * self.width)
        return (rows[:, channels] for rows in self.parts)

    def _centre(self, rows: Tensor, group: int, out: Tensor) -> Tensor:
        # Into memory that is there already: new pages cost more than the products that follow.
        return out.copy_(rows).sub_(self.mean()[group].to(out.dtype))

    def sample_mean(self) -> Tensor:
        return (self.total / self.count).view(self.groups, self.width)

    def variances(self) -> Tensor:
        squares = [sum(piece.square().sum(0) for piece in self.pieces(group)) for group in range(self.groups)]
        return torch.stack([torch.as_tensor(square) for square in squares]) / self.degrees

    def apply(self, rows: Tensor, group: int) -> Tensor:
        product = torch.zeros_like(rows)
        for piece in self.pieces(group):
            product.addmm_(rows @ piece.T, piece)
        return product / self.degrees

    def covariance(self) -> Tensor:
        blocks = self.blocks()
        moments = Covariance(pilot_mean(blocks[0]))
        for block in blocks:
            moments.add(block)
        return (moments.about_zero() if self.from_zero else moments).covariance()

    @property
    def resolution(self) -> float:
        return max(self.count, self.width) * torch.finfo(torch.float64).eps

    def finite(self) -> Tensor:
        return torch.isfinite(self.total).all()


def fits(count: int, groups: int, width: int, dtype: torch.dtype) -> bool:
    """Whether so many samples are few enough to keep."""
    return count <= width and count * groups * width * dtype.itemsize <= SAMPLES_BYTES
