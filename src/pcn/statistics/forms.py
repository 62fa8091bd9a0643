"""Which form of moments an activation gets: its covariance, its samples or a sketch, by width and number of samples."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pcn.errors import StatisticsError
from pcn.statistics.moments import Covariance, Moments, Shifted
from pcn.statistics.pieces import pilot_mean
from pcn.statistics.samples import Samples, fits
from pcn.statistics.sketch import Sketch

COVARIANCE_WIDTH = 4096  # up to here the covariance is kept from the start
WIDEST_BASIS = 8192  # up to here directions may be asked for that only the whole covariance tells
LARGEST_COVARIANCE = 16384  # up to here it replaces samples that have become too many: 2 GB in fp64


@dataclass(frozen=True)
class SketchOptions:
    """How many directions a sketch must be able to give, and the seed of its test vectors."""

    max_rank: int | None = None
    seed: int = 0


def begin(block: Tensor, options: SketchOptions) -> Moments:
    """Start the moments of an activation with its first block (entries, groups, width, positions)."""
    entries, groups, width, positions = block.shape
    if width > COVARIANCE_WIDTH and fits(entries * positions, groups, width, block.dtype):
        return Samples.of(block)
    return empty(pilot_mean(block), options).add(block)


def add(moments: Moments, block: Tensor, options: SketchOptions) -> Moments:
    """Take a block in, changing to another form when there are too many samples to keep."""
    if isinstance(moments, Samples) and not moments.has_room(block.shape[0] * block.shape[3]):
        moments = condensed(moments, options)
    return moments.add(block)


def merge(mine: Moments, other: Moments, options: SketchOptions) -> Moments:
    """Return the moments of both sets of samples."""
    if (mine.groups, mine.width) != (other.groups, other.width):
        raise StatisticsError(
            f"{mine.groups} x {mine.width} channels on one side, {other.groups} x {other.width} on the other"
        )
    if isinstance(mine, Samples) and isinstance(other, Samples) and mine.has_room(other.count):
        return mine.merge(other)
    first, second = (condensed(m, options) if isinstance(m, Samples) else m for m in (mine, other))
    if not isinstance(first, Shifted) or type(first) is not type(second):
        raise StatisticsError(f"{type(first).__name__} and {type(second).__name__} do not add up")
    return first.merge(second)


def condensed(samples: Samples, options: SketchOptions) -> Shifted:
    """Turn samples into sums."""
    blocks = samples.blocks()
    moments = empty(pilot_mean(blocks[0]), options)
    for block in blocks:
        moments.add(block)
    return moments


def empty(pilot: Tensor, options: SketchOptions) -> Shifted:
    """Sums about a pilot mean (groups, width) over no samples yet, in the form that this width has."""
    if pilot.shape[1] <= LARGEST_COVARIANCE:
        return Covariance(pilot)
    return Sketch.random(pilot, options.max_rank, options.seed)
