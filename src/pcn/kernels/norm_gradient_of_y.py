"""What both backward passes share: the gradient of y recomputed from that of its projection, and their launches."""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from pcn.kernels.launch import Launch, tiles_of
from pcn.kernels.tiles import Sizes, column_tile, multiply, read

PER_PROCESSOR = 4  # programs that sum up; twice as many go on to another tile when they are done with one
MORE_OR_LESS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)  # the same in launches that are worth timing, for both
WIDEST = 128  # columns of a tile: two sums are held for each of its elements
WIDER = 256  # the same for launches that are worth timing where rows have as many
# elements of a tile, warps, stages
LARGE = [(4096, 4, 3), (4096, 8, 3), (8192, 8, 2)]
PLAIN = [(4096, 4, 1), (8192, 8, 1)]  # nothing is read ahead: other programs fill the time
# Rows, columns, warps, stages where the gradient comes turned out of its product, columns first: a thread then has few
# columns, and holds what is known of them, and their sums, in few registers.
TURNED: list[Sizes] = [
    (64, 128, 8, 2), (32, 128, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 8, 3), (32, 128, 4, 2), (64, 128, 4, 2)
]  # fmt: skip
# The same where the device's own engine copies tiles of z. Those that threads copy lie on the chip as in memory, eight
# rows below one another in the same banks: threads that read them in the order of the product wait for one another.
DESCRIBED: list[Sizes] = [(64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 8, 2)]


def candidates(sizes: list[tuple[int, int, int]], width: int, rank: int) -> list[Launch]:
    columns, wider = (min(column_tile(width), most) for most in (WIDEST, WIDER))
    return tiles_of(sizes if rank else sizes + PLAIN, columns) + (tiles_of(LARGE, wider) if wider > columns else [])


def turned(width: int, rank: int, described: bool) -> list[Launch]:
    if not rank:
        return []
    launches = [Launch(*sizes, turned=True) for sizes in TURNED]
    if described:
        launches += [Launch(*sizes, turned=True, described=True) for sizes in DESCRIBED]
    return [launch for launch in launches if launch.columns <= column_tile(width)]


@triton.jit
def turn(tile, TURNED: tl.constexpr):
    # From the order of memory, rows first, to that of the product, or back.
    return tl.trans(tile) if TURNED else tile


@triton.jit
def along(of_columns, TURNED: tl.constexpr):
    return of_columns[:, None] if TURNED else of_columns[None, :]


@triton.jit
def norm_of(weight, bias, mean, inverse_std, columns, inside):
    # bn(z) = (z - middle) * slope + shift, with the spread that is in the slope.
    spread = tl.load(inverse_std + columns, inside, 0.0)
    slope = tl.load(weight + columns, inside, 0.0).to(tl.float32) * spread
    shift = tl.load(bias + columns, inside, 0.0).to(tl.float32)
    return slope, shift, tl.load(mean + columns, inside, 0.0), spread


@triton.jit
def transposed(basis, columns, inside, start, rank, PROJECTED: tl.constexpr, DIRECTIONS: tl.constexpr):
    # A tile of Uᵀ.
    if PROJECTED:
        direction = start + tl.arange(0, DIRECTIONS)
        return tl.trans(tl.load(basis + columns[:, None] * rank + direction, inside[:, None] & (direction < rank), 0.0))
    else:
        return inside  # not used


@triton.jit
def of_y(
    d_projected, d_y, basis, back, local, row_inside, columns, inside, at, rank,
    PROJECTED: tl.constexpr, DIRECT: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIRECTIONS: tl.constexpr, TURNED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    # The gradient of y: what comes straight to it, and what comes by its projection.
    gradient = tl.zeros((COLUMNS, ROWS) if TURNED else (ROWS, COLUMNS), tl.float32)
    if PROJECTED:
        for start in range(0, rank, DIRECTIONS):
            direction = start + tl.arange(0, DIRECTIONS)
            known = row_inside[:, None] & (direction < rank)
            coming = read(d_projected + (local[:, None] * rank + direction), known, EVEN and rank % DIRECTIONS == 0)
            part = back
            if rank > DIRECTIONS:
                part = transposed(basis, columns, inside, start, rank, PROJECTED, DIRECTIONS)
            if TURNED:
                gradient = multiply(tl.trans(part), tl.trans(coming), gradient, PRECISION)
            else:
                gradient = multiply(coming, part, gradient, PRECISION)
    if DIRECT:
        gradient += turn(read(d_y + at, row_inside[:, None] & inside, EVEN), TURNED).to(tl.float32)
    return gradient
