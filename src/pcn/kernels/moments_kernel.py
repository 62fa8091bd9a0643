"""Mean and variance of every column in one pass over memory, optionally of the sum of two tensors, which is written.

Programs sum up deviations from the first of their own rows, so a large mean costs no digits; a second kernel merges
their results in a fixed order: the same rows give the same bits.
"""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcn.kernels.launch import CHOICES, Launch, programs, tiles_of
from pcn.kernels.tiles import column_tile, even, offset_of, read, write

PER_PROCESSOR = 6  # programs
MORE_OR_LESS = (2, 4, 8, 12, 16)  # the same in launches that are worth timing
WIDEST = 128  # columns of a tile: two sums are held for each of its elements
WIDER = 256  # the same where rows have as many: rows are read whole
FEWEST_ROWS = 64  # of a program: below, merging costs more than the sums
TILES = [(2048, 4, 4), (4096, 4, 3), (4096, 8, 3), (8192, 8, 3), (4096, 4, 2)]  # elements of a tile, warps, stages
PLAIN = [(4096, 4, 1), (8192, 8, 1)]  # nothing is read ahead: more programs fill the time
# Merging waits for memory more than it computes: many programs' results in one step, of few columns each.
MERGED, MERGED_COLUMNS, MERGING_WARPS = 512, 8, 8


def moments(rows: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows + other (empty without one), and the mean and biased variance of its columns."""
    count, width = rows.shape
    mean, variance = (rows.new_empty(width, dtype=torch.float32) for _ in range(2))
    total = rows.new_empty(0) if other is None else torch.empty_like(rows)
    if not count:
        return total, mean.fill_(torch.nan), variance.fill_(torch.nan)

    def run(launch: Launch) -> None:
        parts, tiles, each = shared_out(rows, launch, PER_PROCESSOR)
        # A program's first row, its mean less that row, and its sum of squares about the mean.
        held = rows.new_empty(parts, 3, width, dtype=torch.float32)
        pcn_moments[(parts, tiles)](
            rows, rows if other is None else other, total, held, count, each, width,
            ADD=other is not None, ROWS=launch.rows, COLUMNS=launch.columns, STAGES=launch.stages,
            EVEN=even(rows, launch), num_warps=launch.warps,
        )  # fmt: skip
        merge(held, mean, variance, count, each)

    key = f"moments {width} {rows.dtype} {other is not None}"
    CHOICES.run(key, count, _candidates(width), rows.device, run, MORE_OR_LESS)
    return total, mean, variance


def shared_out(rows: Tensor, launch: Launch, usual: int) -> tuple[int, int, int]:
    """How many programs share the rows out, how many tiles of columns there are for each, and how many rows it gets.

    ``usual`` is the number of programs on a processor where the launch does not say.
    """
    count, width = rows.shape
    tiles = triton.cdiv(width, launch.columns)
    wanted = max(1, programs(rows.device, launch.per_processor or usual) // tiles)
    each = max(FEWEST_ROWS, triton.cdiv(count, wanted))
    each = triton.cdiv(each, launch.rows) * launch.rows  # whole tiles: the last would take as long as a full one
    return triton.cdiv(count, each), tiles, each


@cache
def _candidates(width: int) -> list[Launch]:
    usual = min(column_tile(width), WIDEST)
    wider = [min(column_tile(width), WIDER)] if width > WIDEST else []
    found = tiles_of(TILES + PLAIN, usual)
    return found + [launch for columns in wider for launch in tiles_of(TILES[1:] + PLAIN, columns)]


def merge(held: Tensor, mean: Tensor, variance: Tensor, count: int, each: int) -> None:
    """Write the mean and biased variance of all rows, given what programs found in their own ``each``."""
    parts, _, width = held.shape
    pcn_moments_merge[(triton.cdiv(width, MERGED_COLUMNS),)](
        held, mean, variance, count, each, parts, width, MERGED=MERGED, COLUMNS=MERGED_COLUMNS, num_warps=MERGING_WARPS
    )


@triton.jit(do_not_specialize=["count", "each"])
def pcn_moments(
    x, other, total, held, count, each, width: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    local = tl.arange(0, ROWS)
    at = local[:, None] * width + columns
    first = part * each
    last = tl.minimum(first + each, count)
    shift = tl.load(x + first * width + columns, inside, 0.0).to(tl.float32)
    if ADD:
        shift += tl.load(other + first * width + columns, inside, 0.0).to(tl.float32)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(first, last, ROWS, num_stages=STAGES):
        there = (local < last - start)[:, None] & inside
        begin = offset_of(start, width)
        value = read(x + begin + at, there, EVEN)
        if ADD:
            value = (value.to(tl.float32) + read(other + begin + at, there, EVEN).to(tl.float32)).to(value.dtype)
            write(total + begin + at, value, there, EVEN)
        deviation = value.to(tl.float32) - shift
        if not EVEN:
            deviation = tl.where(there, deviation, 0.0)
        sums += deviation
        squares += deviation * deviation
    put_part(held + part * 3 * width, shift, sums, squares, last - first, columns, inside, width)


@triton.jit
def put_part(held, shift, sums, squares, count, columns, inside, width):
    # What a program has found: its shift, the mean of its rows less that, their sum of squares about the mean.
    n = count.to(tl.float32)
    mean = tl.sum(sums, 0) / n
    tl.store(held + columns, shift, inside)
    tl.store(held + width + columns, mean, inside)
    tl.store(held + 2 * width + columns, tl.maximum(tl.sum(squares, 0) - mean * mean * n, 0.0), inside)


@triton.jit(do_not_specialize=["count", "each", "parts"])
def pcn_moments_merge(
    held, mean, variance, count, each, parts, width: tl.constexpr, MERGED: tl.constexpr, COLUMNS: tl.constexpr
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    pivot = tl.load(held + columns, inside, 0.0)
    # What is read first is most often all: it is kept, so that the second sum waits for no memory.
    first_away, first_n, first_within = _part(held, pivot, 0, columns, inside, count, each, parts, width, MERGED)
    moved = first_away * first_n
    for start in range(MERGED, parts, MERGED):
        away, n, _ = _part(held, pivot, start, columns, inside, count, each, parts, width, MERGED)
        moved += away * n
    total = count.to(tl.float32)
    centre = tl.sum(moved, 0) / total
    squares = first_within + (first_away - centre) * (first_away - centre) * first_n
    for start in range(MERGED, parts, MERGED):
        away, n, within = _part(held, pivot, start, columns, inside, count, each, parts, width, MERGED)
        squares += within + (away - centre) * (away - centre) * n
    tl.store(mean + columns, pivot + centre, inside)
    tl.store(variance + columns, tl.sum(squares, 0) / total, inside)


@triton.jit
def _part(held, pivot, start, columns, inside, count, each, parts, width, MERGED: tl.constexpr):
    # How far programs' means are from the pivot, how many rows they saw, and their sums of squares.
    part = start + tl.arange(0, MERGED)
    there = (part < parts)[:, None] & inside
    at = part[:, None] * 3 * width + columns
    n = tl.maximum(tl.minimum(each, count - part.to(tl.int64) * each), 0).to(tl.float32)[:, None]
    away = (tl.load(held + at, there, 0.0) - pivot) + tl.load(held + at + width, there, 0.0)
    return away, tl.where(there, n, 0.0), tl.load(held + at + 2 * width, there, 0.0)
