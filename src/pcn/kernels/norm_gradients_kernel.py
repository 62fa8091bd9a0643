"""The second backward pass: the gradient of the rows, from that of y and the sums over all of them."""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from pcn.kernels.launch import CHOICES, Launch, programs
from pcn.kernels.norm_gradient_of_y import (
    MORE_OR_LESS,
    PER_PROCESSOR,
    along,
    candidates,
    norm_of,
    of_y,
    transposed,
    turn,
    turned,
)
from pcn.kernels.reference import Norm
from pcn.kernels.tiles import (
    Sizes,
    deep_tiles,
    describable,
    described,
    even,
    offset_of,
    or_any,
    precision,
    product_key,
    rank_tile,
    read_tile,
    write,
)

# elements of a tile, warps, stages
GRADIENTS = [(2048, 4, 3), (2048, 4, 4), (4096, 8, 3), (4096, 4, 2), (8192, 8, 2)]
# Rows, columns, warps, stages where a basis has many directions: in parts, it would be read again for every tile.
DEEP: list[Sizes] = [(64, 128, 8, 2), (32, 128, 8, 3), (64, 64, 4, 2), (64, 64, 8, 3)]


def differentiate(
    d_projected: Tensor | None, d_y: Tensor | None, rows: Tensor, norm: Norm, basis: Tensor | None,
    d_bias: Tensor, d_weight: Tensor, d_rows: Tensor, *, training: bool, relu: bool,
) -> None:  # fmt: skip
    """Write the gradient of the rows."""
    count, width = rows.shape
    rank = 0 if basis is None else basis.shape[1]
    coming, others = or_any(rows, d_projected, d_y), or_any(rows, *norm, basis)

    def run(launch: Launch) -> None:
        tiles, column_tiles = triton.cdiv(count, launch.rows), triton.cdiv(width, launch.columns)
        most = max(1, programs(rows.device, launch.per_processor or 2 * PER_PROCESSOR) // column_tiles)
        pcn_norm_gradients[(min(tiles, most), column_tiles)](
            *coming, described(rows, launch), *others, d_bias, d_weight, d_rows, count, tiles, 1.0 / count, width, rank,
            PROJECTED=basis is not None, DIRECT=d_y is not None, RELU=relu, TRAINING=training,
            PRECISION=precision(basis), ROWS=launch.rows, COLUMNS=launch.columns,
            DIRECTIONS=launch.depth or rank_tile(rank), STAGES=launch.stages, TURNED=launch.turned,
            EVEN=even(rows, launch), DESCRIBED=launch.described, num_warps=launch.warps,
        )  # fmt: skip

    flags = f"{d_projected is not None} {d_y is not None} {relu} {training}"
    key = f"gradients {width} {rank} {rows.dtype} {product_key(basis)} {flags}"
    launches = _launches(width, rank, describable(rows))
    CHOICES.run(key, count, launches, rows.device, run, MORE_OR_LESS)


@cache
def _launches(width: int, rank: int, described: bool) -> list[Launch]:
    return candidates(GRADIENTS, width, rank) + deep_tiles(DEEP, rank) + turned(width, rank, described)


@triton.jit(do_not_specialize=["count", "tiles", "share"])
def pcn_norm_gradients(
    d_projected, d_y, z, weight, bias, mean, inverse_std, basis, d_bias, d_weight, d_z, count, tiles, share,
    width: tl.constexpr, rank: tl.constexpr,
    PROJECTED: tl.constexpr, DIRECT: tl.constexpr, RELU: tl.constexpr, TRAINING: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIRECTIONS: tl.constexpr,
    STAGES: tl.constexpr, TURNED: tl.constexpr, EVEN: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    local = tl.arange(0, ROWS)
    at = local[:, None] * width + columns
    slope, shift, middle, spread = norm_of(weight, bias, mean, inverse_std, columns, inside)
    back = transposed(basis, columns, inside, 0, rank, PROJECTED, DIRECTIONS)
    if TRAINING:  # what the batch's mean and variance take off, at the mean and for every step away from it
        level = along(tl.load(d_bias + columns, inside, 0.0) * share * slope, TURNED)
        tilt = along(tl.load(d_weight + columns, inside, 0.0) * share * spread * slope, TURNED)
    slope, shift, middle = along(slope, TURNED), along(shift, TURNED), along(middle, TURNED)
    for tile in tl.range(tl.program_id(0).to(tl.int64), tiles, tl.num_programs(0), num_stages=STAGES):
        row_inside = local < count - tile * ROWS
        there = row_inside[:, None] & inside
        begin, narrow_begin = offset_of(tile * ROWS, width), offset_of(tile * ROWS, rank)
        gradient = of_y(
            d_projected + narrow_begin, d_y + begin, basis, back, local, row_inside, columns, inside, at, rank,
            PROJECTED, DIRECT, PRECISION, ROWS, COLUMNS, DIRECTIONS, TURNED, EVEN,
        )  # fmt: skip
        if RELU or TRAINING:
            value = read_tile(z, tile * ROWS, at, there, width, COLUMNS, EVEN, DESCRIBED)
            deviation = turn(value, TURNED).to(tl.float32) - middle
            if RELU:
                gradient = tl.where(deviation * slope + shift <= 0, 0.0, gradient)
        gradient *= slope
        if TRAINING:
            gradient -= deviation * tilt + level
        write(d_z + begin + at, turn(gradient.to(d_z.dtype.element_ty), TURNED), there, EVEN)
