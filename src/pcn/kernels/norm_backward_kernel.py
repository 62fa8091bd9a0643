"""The gradients of relu(bn(z) + s) and of its projection: one pass for the sums over rows, one for the rows' own.

Both work the gradient of y out again from that of p, so nothing full-width but z is kept for them. Where something was
added, its gradient is that of bn(z) too: the first pass writes it, the second reads it.
"""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcn.kernels.launch import CHOICES, Launch, programs, tiles_of
from pcn.kernels.moments_kernel import MERGED, MERGED_COLUMNS, MERGING_WARPS
from pcn.kernels.reference import Gradients, Norm
from pcn.kernels.tiles import (
    Sizes,
    column_tile,
    deep_tiles,
    multiply,
    offset_of,
    or_any,
    precision,
    product_key,
    rank_tile,
)

PER_PROCESSOR = 4  # programs that sum up; twice as many go on to another tile when they are done with one
MORE_OR_LESS = (2, 3, 6, 8, 12, 16, 24)  # the same in launches that are worth timing
FEWEST_ROWS = 64  # of a program that sums up
WIDEST = 128  # columns of a tile: two sums are held for each of its elements
WIDER = 256  # the same for launches that are worth timing where rows have as many
RECOMPUTE, ADD, LOOK = 0, 1, 2  # where ReLU let through: from z alone, from z and what was added, from y itself
# elements of a tile, warps, stages
SUMS = [(2048, 4, 3), (2048, 4, 4), (4096, 8, 3), (4096, 4, 3), (2048, 2, 3), (1024, 4, 4)]
GRADIENTS = [(2048, 4, 3), (2048, 4, 4), (4096, 8, 3), (4096, 4, 2), (8192, 8, 2)]
LARGE = [(4096, 4, 3), (4096, 8, 3), (8192, 8, 2)]
PLAIN = [(4096, 4, 1), (8192, 8, 1)]  # nothing is read ahead: other programs fill the time
# Rows, columns, warps, stages where a basis has many directions: in parts, it would be read again for every tile.
DEEP_SUMS: list[Sizes] = [(32, 128, 8, 3), (64, 128, 8, 2), (64, 64, 4, 2), (64, 64, 8, 3)]
DEEP_GRADIENTS: list[Sizes] = [(64, 128, 8, 2), (32, 128, 8, 3), (64, 64, 4, 2), (64, 64, 8, 3)]

# Rows, columns, warps, stages where the gradient comes turned out of its product, columns first: a thread then has few
# columns, and holds what is known of them, and their sums, in few registers.
TURNED: list[Sizes] = [(64, 128, 8, 2), (32, 128, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 8, 3)]


def norm_project_backward(
    d_projected: Tensor | None, d_y: Tensor | None, rows: Tensor, added: Tensor | None, y: Tensor | None,
    norm: Norm, basis: Tensor | None, *, training: bool, relu: bool,
) -> Gradients:  # fmt: skip
    """Return what :func:`pcn.kernels.reference.norm_project_backward` does; ``y`` spares it reading ``added``."""
    basis = None if d_projected is None else basis
    given, mask = (y, LOOK) if y is not None else (added, RECOMPUTE if added is None else ADD)
    d_added = rows.new_empty(0) if given is None else torch.empty_like(rows)
    new = rows.new_empty if len(rows) else rows.new_zeros  # the sums are written, not added to
    d_bias, d_weight = (new(rows.shape[1], dtype=torch.float32) for _ in range(2))
    d_rows = torch.empty_like(rows)
    if len(rows):
        _sum_up(d_projected, d_y, rows, given, norm, basis, d_added, d_bias, d_weight, mask=mask, relu=relu)
        if given is not None:  # what was written is the gradient behind ReLU already
            d_projected, d_y, basis, relu = None, d_added, None, False
        _differentiate(d_projected, d_y, rows, norm, basis, d_bias, d_weight, d_rows, training=training, relu=relu)
    return Gradients(d_rows, d_added, d_weight.to(norm.weight.dtype), d_bias.to(norm.bias.dtype))


def _sum_up(
    d_projected: Tensor | None, d_y: Tensor | None, rows: Tensor, given: Tensor | None, norm: Norm,
    basis: Tensor | None, d_added: Tensor, d_bias: Tensor, d_weight: Tensor, *, mask: int, relu: bool,
) -> None:  # fmt: skip
    """Write the sums over rows of g and of g (z - mean) / std, and g itself, the gradient behind ReLU, if wanted."""
    count, width = rows.shape
    rank = 0 if basis is None else basis.shape[1]
    tensors = or_any(rows, d_projected, d_y, rows, given, *norm, basis, d_added)

    def run(launch: Launch) -> None:
        tiles = triton.cdiv(width, launch.columns)
        wanted = max(1, programs(rows.device, launch.per_processor or PER_PROCESSOR) // tiles)
        each = max(FEWEST_ROWS, triton.cdiv(count, wanted))
        parts = triton.cdiv(count, each)
        held = rows.new_empty(parts, 2, width, dtype=torch.float32)
        pcn_norm_sums[(parts, tiles)](
            *tensors, held, count, each, width, rank, PROJECTED=basis is not None, DIRECT=d_y is not None, RELU=relu,
            MASK=mask, WRITE=d_added.numel() > 0, PRECISION=precision(basis), ROWS=launch.rows, COLUMNS=launch.columns,
            DIRECTIONS=launch.depth or rank_tile(rank), STAGES=launch.stages, TURNED=launch.turned,
            num_warps=launch.warps,
        )  # fmt: skip
        pcn_norm_sums_merge[(triton.cdiv(width, MERGED_COLUMNS),)](
            held, d_bias, d_weight, parts, width, ADDED=MERGED, COLUMNS=MERGED_COLUMNS, num_warps=MERGING_WARPS
        )

    flags = f"{d_projected is not None} {d_y is not None} {mask} {relu}"
    key = f"sums {width} {rank} {rows.dtype} {product_key(basis)} {flags}"
    launches = _candidates(SUMS, width, rank) + deep_tiles(DEEP_SUMS, rank) + _turned(width, rank)
    CHOICES.run(key, launches, rows.device, run, MORE_OR_LESS)


def _differentiate(
    d_projected: Tensor | None, d_y: Tensor | None, rows: Tensor, norm: Norm, basis: Tensor | None,
    d_bias: Tensor, d_weight: Tensor, d_rows: Tensor, *, training: bool, relu: bool,
) -> None:  # fmt: skip
    """Write the gradient of the rows."""
    count, width = rows.shape
    rank = 0 if basis is None else basis.shape[1]
    tensors = or_any(rows, d_projected, d_y, rows, *norm, basis)

    def run(launch: Launch) -> None:
        tiles, column_tiles = triton.cdiv(count, launch.rows), triton.cdiv(width, launch.columns)
        most = max(1, programs(rows.device, launch.per_processor or 2 * PER_PROCESSOR) // column_tiles)
        pcn_norm_gradients[(min(tiles, most), column_tiles)](
            *tensors, d_bias, d_weight, d_rows, count, tiles, 1.0 / count, width, rank, PROJECTED=basis is not None,
            DIRECT=d_y is not None, RELU=relu, TRAINING=training, PRECISION=precision(basis), ROWS=launch.rows,
            COLUMNS=launch.columns, DIRECTIONS=launch.depth or rank_tile(rank), STAGES=launch.stages,
            TURNED=launch.turned, num_warps=launch.warps,
        )  # fmt: skip

    flags = f"{d_projected is not None} {d_y is not None} {relu} {training}"
    key = f"gradients {width} {rank} {rows.dtype} {product_key(basis)} {flags}"
    launches = _candidates(GRADIENTS, width, rank) + deep_tiles(DEEP_GRADIENTS, rank) + _turned(width, rank)
    CHOICES.run(key, launches, rows.device, run, MORE_OR_LESS)


def _candidates(sizes: list[tuple[int, int, int]], width: int, rank: int) -> list[Launch]:
    columns, wider = (min(column_tile(width), most) for most in (WIDEST, WIDER))
    return tiles_of(sizes if rank else sizes + PLAIN, columns) + (tiles_of(LARGE, wider) if wider > columns else [])


def _turned(width: int, rank: int) -> list[Launch]:
    launches = [Launch(rows, columns, warps, stages, turned=True) for rows, columns, warps, stages in TURNED]
    return [launch for launch in launches if rank and launch.columns <= column_tile(width)]


@triton.jit(do_not_specialize=["count", "each"])
def pcn_norm_sums(
    d_projected, d_y, z, given, weight, bias, mean, inverse_std, basis, d_added, held, count, each,
    width: tl.constexpr, rank: tl.constexpr,
    PROJECTED: tl.constexpr, DIRECT: tl.constexpr, RELU: tl.constexpr, MASK: tl.constexpr, WRITE: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIRECTIONS: tl.constexpr,
    STAGES: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    local = tl.arange(0, ROWS)
    at = local[:, None] * width + columns
    scale, shift, middle, spread = _norm(weight, bias, mean, inverse_std, columns, inside, TURNED)
    back = _transposed(basis, columns, inside, 0, rank, PROJECTED, DIRECTIONS)
    first = part * each
    last = tl.minimum(first + each, count)
    plain = tl.zeros((COLUMNS,) if TURNED else (ROWS, COLUMNS), tl.float32)
    weighted = plain
    for start in tl.range(first, last, ROWS, num_stages=STAGES):
        row_inside = local < last - start
        there = row_inside[:, None] & inside
        begin, narrow_begin = offset_of(start, width), offset_of(start, rank)
        normal = (_turn(tl.load(z + begin + at, there, 0.0), TURNED).to(tl.float32) - middle) * spread
        gradient = _of_y(
            d_projected + narrow_begin, d_y + begin, basis, back, local, row_inside, columns, inside, at, rank,
            PROJECTED, DIRECT, PRECISION, ROWS, COLUMNS, DIRECTIONS, TURNED,
        )  # fmt: skip
        if RELU:
            if MASK == 2:
                before = _turn(tl.load(given + begin + at, there, 0.0), TURNED).to(tl.float32)
            else:
                before = normal * scale + shift
                if MASK == 1:
                    before += _turn(tl.load(given + begin + at, there, 0.0), TURNED).to(tl.float32)
            gradient = tl.where(before <= 0, 0.0, gradient)
        gradient = tl.where(_turn(there, TURNED), gradient, 0.0)
        if WRITE:
            tl.store(d_added + begin + at, _turn(gradient.to(d_added.dtype.element_ty), TURNED), there)
        if TURNED:
            plain += tl.sum(gradient, 1)
            weighted += tl.sum(gradient * normal, 1)
        else:
            plain += gradient
            weighted += gradient * normal
    if not TURNED:
        plain, weighted = tl.sum(plain, 0), tl.sum(weighted, 0)
    held += part * 2 * width
    tl.store(held + columns, plain, inside)
    tl.store(held + width + columns, weighted, inside)


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


@triton.jit(do_not_specialize=["count", "tiles", "share"])
def pcn_norm_gradients(
    d_projected, d_y, z, weight, bias, mean, inverse_std, basis, d_bias, d_weight, d_z, count, tiles, share,
    width: tl.constexpr, rank: tl.constexpr,
    PROJECTED: tl.constexpr, DIRECT: tl.constexpr, RELU: tl.constexpr, TRAINING: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIRECTIONS: tl.constexpr,
    STAGES: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    local = tl.arange(0, ROWS)
    at = local[:, None] * width + columns
    scale, shift, middle, spread = _norm(weight, bias, mean, inverse_std, columns, inside, TURNED)
    back = _transposed(basis, columns, inside, 0, rank, PROJECTED, DIRECTIONS)
    if TRAINING:
        plain = _along(tl.load(d_bias + columns, inside, 0.0) * share, TURNED)
        weighted = _along(tl.load(d_weight + columns, inside, 0.0) * share, TURNED)
    for tile in tl.range(tl.program_id(0).to(tl.int64), tiles, tl.num_programs(0), num_stages=STAGES):
        row_inside = local < count - tile * ROWS
        there = row_inside[:, None] & inside
        begin, narrow_begin = offset_of(tile * ROWS, width), offset_of(tile * ROWS, rank)
        gradient = _of_y(
            d_projected + narrow_begin, d_y + begin, basis, back, local, row_inside, columns, inside, at, rank,
            PROJECTED, DIRECT, PRECISION, ROWS, COLUMNS, DIRECTIONS, TURNED,
        )  # fmt: skip
        if RELU or TRAINING:
            normal = (_turn(tl.load(z + begin + at, there, 0.0), TURNED).to(tl.float32) - middle) * spread
            if RELU:
                gradient = tl.where(normal * scale + shift <= 0, 0.0, gradient)
            if TRAINING:
                gradient -= plain + normal * weighted
        result = (gradient * (scale * spread)).to(d_z.dtype.element_ty)
        tl.store(d_z + begin + at, _turn(result, TURNED), there)


@triton.jit
def _turn(tile, TURNED: tl.constexpr):
    # From the order of memory, rows first, to that of the product, or back.
    return tl.trans(tile) if TURNED else tile


@triton.jit
def _along(of_columns, TURNED: tl.constexpr):
    return of_columns[:, None] if TURNED else of_columns[None, :]


@triton.jit
def _norm(weight, bias, mean, inverse_std, columns, inside, TURNED: tl.constexpr):
    scale = _along(tl.load(weight + columns, inside, 0.0).to(tl.float32), TURNED)
    shift = _along(tl.load(bias + columns, inside, 0.0).to(tl.float32), TURNED)
    middle = _along(tl.load(mean + columns, inside, 0.0), TURNED)
    return scale, shift, middle, _along(tl.load(inverse_std + columns, inside, 0.0), TURNED)


@triton.jit
def _transposed(basis, columns, inside, start, rank, PROJECTED: tl.constexpr, DIRECTIONS: tl.constexpr):
    # A tile of Uᵀ.
    if PROJECTED:
        direction = start + tl.arange(0, DIRECTIONS)
        return tl.trans(tl.load(basis + columns[:, None] * rank + direction, inside[:, None] & (direction < rank), 0.0))
    else:
        return inside  # not used


@triton.jit
def _of_y(
    d_projected, d_y, basis, back, local, row_inside, columns, inside, at, rank,
    PROJECTED: tl.constexpr, DIRECT: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIRECTIONS: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    # The gradient of y: what comes straight to it, and what comes by its projection.
    gradient = tl.zeros((COLUMNS, ROWS) if TURNED else (ROWS, COLUMNS), tl.float32)
    if PROJECTED:
        for start in range(0, rank, DIRECTIONS):
            direction = start + tl.arange(0, DIRECTIONS)
            known = row_inside[:, None] & (direction < rank)
            coming = tl.load(d_projected + (local[:, None] * rank + direction), known, 0.0)
            part = back
            if rank > DIRECTIONS:
                part = _transposed(basis, columns, inside, start, rank, PROJECTED, DIRECTIONS)
            if TURNED:
                gradient = multiply(tl.trans(part), tl.trans(coming), gradient, PRECISION)
            else:
                gradient = multiply(coming, part, gradient, PRECISION)
    if DIRECT:
        gradient += _turn(tl.load(d_y + at, row_inside[:, None] & inside, 0.0), TURNED).to(tl.float32)
    return gradient
