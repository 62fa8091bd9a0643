"""The first backward pass: sums over rows that batch norm's gradient needs, and the gradient behind ReLU if wanted."""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcn.kernels.launch import CHOICES, Launch
from pcn.kernels.moments_kernel import MERGED, MERGED_COLUMNS, MERGING_WARPS, shared_out
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
    read,
    read_tile,
    write,
)

RECOMPUTE, ADD, LOOK = 0, 1, 2  # where ReLU let through: from z alone, from z and what was added, from y itself
# elements of a tile, warps, stages
SUMS = [(2048, 4, 3), (2048, 4, 4), (4096, 8, 3), (4096, 4, 3), (2048, 2, 3), (1024, 4, 4)]
# Rows, columns, warps, stages where a basis has many directions: in parts, it would be read again for every tile.
DEEP: list[Sizes] = [(32, 128, 8, 3), (64, 128, 8, 2), (64, 64, 4, 2), (64, 64, 8, 3)]
# Every eighth row of a turned product lies in the same thread: summed up apart, they need no other thread in the loop.
APART = tl.constexpr(8)


def sum_up(
    d_projected: Tensor | None, d_y: Tensor | None, rows: Tensor, given: Tensor | None, norm: Norm,
    basis: Tensor | None, behind: Tensor | None, d_bias: Tensor, d_weight: Tensor, *, mask: int, relu: bool,
) -> None:  # fmt: skip
    """Write the sums over rows of g and of g (z - mean) / std, and g, the gradient behind ReLU, to ``behind``."""
    count, width = rows.shape
    rank = 0 if basis is None else basis.shape[1]
    coming, others = or_any(rows, d_projected, d_y), or_any(rows, given, *norm, basis, behind)

    def run(launch: Launch) -> None:
        parts, tiles, each = shared_out(rows, launch, PER_PROCESSOR)
        held = rows.new_empty(parts, 2, width, dtype=torch.float32)
        pcn_norm_sums[(parts, tiles)](
            *coming, described(rows, launch), *others, held, count, each, width, rank, PROJECTED=basis is not None,
            DIRECT=d_y is not None, RELU=relu, MASK=mask, WRITE=behind is not None, PRECISION=precision(basis),
            ROWS=launch.rows, COLUMNS=launch.columns, DIRECTIONS=launch.depth or rank_tile(rank), STAGES=launch.stages,
            TURNED=launch.turned, EVEN=even(rows, launch), DESCRIBED=launch.described, num_warps=launch.warps,
        )  # fmt: skip
        pcn_norm_sums_merge[(triton.cdiv(width, MERGED_COLUMNS),)](
            held, d_bias, d_weight, parts, width, ADDED=MERGED, COLUMNS=MERGED_COLUMNS, num_warps=MERGING_WARPS
        )

    flags = f"{d_projected is not None} {d_y is not None} {mask} {relu}"
    flags += " written" if mask == RECOMPUTE and behind is not None else ""
    key = f"sums {width} {rank} {rows.dtype} {product_key(basis)} {flags}"
    launches = _launches(width, rank, describable(rows))
    CHOICES.run(key, count, launches, rows.device, run, MORE_OR_LESS)


@cache
def _launches(width: int, rank: int, described: bool) -> list[Launch]:
    return candidates(SUMS, width, rank) + deep_tiles(DEEP, rank) + turned(width, rank, described)


@triton.jit(do_not_specialize=["count", "each"])
def pcn_norm_sums(
    d_projected, d_y, z, given, weight, bias, mean, inverse_std, basis, behind, held, count, each,
    width: tl.constexpr, rank: tl.constexpr,
    PROJECTED: tl.constexpr, DIRECT: tl.constexpr, RELU: tl.constexpr, MASK: tl.constexpr, WRITE: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIRECTIONS: tl.constexpr,
    STAGES: tl.constexpr, TURNED: tl.constexpr, EVEN: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    local = tl.arange(0, ROWS)
    at = local[:, None] * width + columns
    slope, shift, middle, spread = norm_of(weight, bias, mean, inverse_std, columns, inside)
    slope_along, shift_along, middle_along = along(slope, TURNED), along(shift, TURNED), along(middle, TURNED)
    back = transposed(basis, columns, inside, 0, rank, PROJECTED, DIRECTIONS)
    first = part * each
    last = tl.minimum(first + each, count)
    plain = tl.zeros((COLUMNS, APART) if TURNED else (ROWS, COLUMNS), tl.float32)
    weighted = plain
    for start in tl.range(first, last, ROWS, num_stages=STAGES):
        row_inside = local < last - start
        there = row_inside[:, None] & inside
        begin, narrow_begin = offset_of(start, width), offset_of(start, rank)
        value = read_tile(z, start, at, there, width, COLUMNS, EVEN, DESCRIBED)
        deviation = turn(value, TURNED).to(tl.float32) - middle_along
        gradient = of_y(
            d_projected + narrow_begin, d_y + begin, basis, back, local, row_inside, columns, inside, at, rank,
            PROJECTED, DIRECT, PRECISION, ROWS, COLUMNS, DIRECTIONS, TURNED, EVEN,
        )  # fmt: skip
        if RELU:
            if MASK == 2:
                before = turn(read(given + begin + at, there, EVEN), TURNED).to(tl.float32)
            else:
                before = deviation * slope_along + shift_along
                if MASK == 1:
                    before += turn(read(given + begin + at, there, EVEN), TURNED).to(tl.float32)
            gradient = tl.where(before <= 0, 0.0, gradient)
        if WRITE:
            write(behind + begin + at, turn(gradient.to(behind.dtype.element_ty), TURNED), there, EVEN)
        if TURNED:  # rows that are not there bring no gradient
            plain += tl.sum(tl.reshape(gradient, (COLUMNS, ROWS // APART, APART)), 1)
            weighted += tl.sum(tl.reshape(gradient * deviation, (COLUMNS, ROWS // APART, APART)), 1)
        else:
            plain += gradient
            weighted += gradient * deviation
    plain, weighted = tl.sum(plain, 1 if TURNED else 0), tl.sum(weighted, 1 if TURNED else 0)
    held += part * 2 * width
    tl.store(held + columns, plain, inside)
    tl.store(held + width + columns, weighted * spread, inside)


@triton.jit(do_not_specialize=["parts"])
def pcn_norm_sums_merge(held, plain, weighted, parts, width: tl.constexpr, ADDED: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    sums = tl.zeros((ADDED, COLUMNS), tl.float32)
    weighted_sums = tl.zeros((ADDED, COLUMNS), tl.float32)
    for start in range(0, parts, ADDED):
        part = start + tl.arange(0, ADDED)
        there = (part < parts)[:, None] & inside
        at = part[:, None] * 2 * width + columns
        sums += tl.load(held + at, there, 0.0)
        weighted_sums += tl.load(held + at + width, there, 0.0)
    tl.store(plain + columns, tl.sum(sums, 0), inside)
    tl.store(weighted + columns, tl.sum(weighted_sums, 0), inside)
