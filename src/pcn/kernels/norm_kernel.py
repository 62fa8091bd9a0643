"""y = relu(bn(z) + s) and p = (y - mu) U in one pass over rows; y is written only where somebody else needs it."""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcn.kernels.launch import CHOICES, Launch, programs, tiles_of
from pcn.kernels.reference import Norm
from pcn.kernels.tiles import (
    LARGEST_BASIS,
    WIDER_BASIS,
    Sizes,
    column_tile,
    deep_tiles,
    even,
    multiply,
    offset_of,
    or_any,
    precision,
    product_key,
    rank_tile,
    read,
    write,
)

PER_PROCESSOR = 8  # programs; each goes on to another tile when it is done with one
MORE_OR_LESS = (2, 3, 4, 6, 12, 16, 32)  # the same in launches that are worth timing
# Elements, warps, stages. Tiles of whole rows have larger parts of the basis on the chip.
TILES = [(4096, 4, 3), (2048, 4, 3), (8192, 4, 2), (8192, 8, 3), (4096, 8, 3), (2048, 4, 4)]
WIDER = [(8192, 8, 3), (8192, 8, 2), (4096, 4, 3), (4096, 8, 3)]
PLAIN = [(4096, 4, 1), (8192, 8, 1)]  # nothing is read ahead: other programs fill the time
# Rows, columns, warps, stages where a basis has many directions: in two parts, rows would be read twice.
DEEP: list[Sizes] = [(64, 64, 8, 3), (128, 64, 8, 2), (128, 32, 8, 3)]
# Elements, warps, stages where rows are the right factor of the product: that one is read out of shared memory, so rows
# can stay as they are loaded, a few columns for each thread. As the left one, threads hold scale, shift and mean of a
# quarter of all columns, and there is no room for more of them.
TURNED = [(4096, 4, 3), (4096, 4, 2), (8192, 8, 2), (8192, 8, 3), (8192, 4, 2), (16384, 8, 2)]
FEWEST_TURNED = 64  # directions that such a product has at least; some may be zero
TURNED_BASIS = 65536  # elements of a whole basis that stays on the chip beside tiles of whole rows


def norm_project(
    rows: Tensor, added: Tensor | None, norm: Norm | None, basis: Tensor | None, centre: Tensor | None,
    *, relu: bool, emit: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return y and p as :func:`pcn.kernels.reference.norm_project` does, each empty where it is not wanted.

    Without a norm, y is z: a projection alone is this kernel too.
    """
    count, width = rows.shape
    rank = 0 if basis is None else basis.shape[1]
    y = torch.empty_like(rows) if emit else rows.new_empty(0)
    projected = rows.new_empty(0) if basis is None else basis.new_empty(count, rank)
    if not count:
        return y, projected
    tensors = or_any(rows, added, y, projected, *(norm or (None,) * 4), basis, centre)

    def run(launch: Launch) -> None:
        directions = launch.depth or rank_tile(rank)
        tiles, parts = triton.cdiv(count, launch.rows), max(1, triton.cdiv(rank, directions))
        most = max(1, programs(rows.device, launch.per_processor or PER_PROCESSOR) // parts)
        pcn_norm[(parts, min(tiles, most))](  # parts of one tile run at the same time: all but one read out of L2
            rows, *tensors, count, tiles, width, rank, NORM=norm is not None, ADDED=added is not None, RELU=relu,
            EMIT=emit, PROJECT=basis is not None, CENTRE=centre is not None, PRECISION=precision(basis),
            ROWS=launch.rows, COLUMNS=launch.columns, DIRECTIONS=directions, STAGES=launch.stages,
            TURNED=launch.turned, FLAT=launch.flat, EVEN=even(rows, launch), num_warps=launch.warps,
        )  # fmt: skip

    flags = f"{norm is not None} {added is not None} {emit} {relu} {centre is not None}"
    key = f"norm_project {width} {rank} {rows.dtype} {product_key(basis)} {flags}"
    CHOICES.run(key, count, _candidates(width, rank, added is not None), rows.device, run, MORE_OR_LESS)
    return y, projected


@cache
def _candidates(width: int, rank: int, added: bool) -> list[Launch]:
    columns, wide = (column_tile(width, rank_tile(rank), most) for most in (LARGEST_BASIS, WIDER_BASIS))
    sizes = TILES[1:] + TILES[:1] if added else TILES  # two tensors to read: smaller tiles first
    if not rank:
        return tiles_of(sizes + PLAIN, columns)
    found = tiles_of(sizes, columns) + (tiles_of(WIDER, wide) if wide > columns else []) + deep_tiles(DEEP, rank)
    # Where rows are read in parts, two loops can be one: what is read ahead does not end with a tile.
    flat = [replace(launch, flat=True) for launch in found if launch.columns < width]
    return found + flat + _turned(width, rank)


def _turned(width: int, rank: int) -> list[Launch]:
    columns, depth = column_tile(width, basis=TURNED_BASIS), max(FEWEST_TURNED, rank_tile(rank))
    if columns < width or depth < rank or columns * depth > TURNED_BASIS:
        return []
    return [replace(launch, depth=depth, turned=True) for launch in tiles_of(TURNED, columns)]


@triton.jit(do_not_specialize=["count", "tiles"])
def pcn_norm(
    z, added, y, projected, weight, bias, mean, inverse_std, basis, centre, count, tiles,
    width: tl.constexpr, rank: tl.constexpr,
    NORM: tl.constexpr, ADDED: tl.constexpr, RELU: tl.constexpr, EMIT: tl.constexpr, PROJECT: tl.constexpr,
    CENTRE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DIRECTIONS: tl.constexpr, STAGES: tl.constexpr, TURNED: tl.constexpr, FLAT: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    SHORT: tl.constexpr = y.dtype.element_ty.primitive_bitwidth == 16
    direction = tl.program_id(0) * DIRECTIONS + tl.arange(0, DIRECTIONS)
    local = tl.arange(0, ROWS)
    if width <= COLUMNS:  # what all tiles need is read once
        scale, shift, middle = _affine(weight, bias, mean, inverse_std, 0, width, NORM, SHORT, COLUMNS)
        part, zero = _directions(basis, centre, 0, direction, width, rank, PROJECT, CENTRE, COLUMNS)
    for tile in tl.range(tl.program_id(1).to(tl.int64), tiles, tl.num_programs(1), num_stages=STAGES, flatten=FLAT):
        row_inside = (local < count - tile * ROWS)[:, None]
        start_at = offset_of(tile * ROWS, width)
        product = tl.zeros((DIRECTIONS, ROWS) if TURNED else (ROWS, DIRECTIONS), tl.float32)
        for start in range(0, width, COLUMNS):
            if width > COLUMNS:
                scale, shift, middle = _affine(weight, bias, mean, inverse_std, start, width, NORM, SHORT, COLUMNS)
                part, zero = _directions(basis, centre, start, direction, width, rank, PROJECT, CENTRE, COLUMNS)
            columns = start + tl.arange(0, COLUMNS)
            there = row_inside & (columns < width)
            at = local[:, None] * width + columns
            value = read(z + start_at + at, there, EVEN).to(tl.float32)
            if NORM:
                value = value * scale + shift if SHORT else (value - middle) * scale + shift
            if ADDED:
                value += read(added + start_at + at, there, EVEN).to(tl.float32)
            if RELU:
                value = tl.where(value <= 0, 0.0, value)  # a NaN stays one
            if EMIT:
                first = tl.program_id(0) == 0  # of the programs that read the same rows
                write(y + start_at + at, value.to(y.dtype.element_ty), there & first, EVEN and rank <= DIRECTIONS)
            if PROJECT:
                if CENTRE:
                    value -= zero
                value = value.to(part.dtype)
                if TURNED:
                    product = multiply(tl.trans(part), tl.trans(value), product, PRECISION)
                else:
                    product = multiply(value, part, product, PRECISION)
        if PROJECT:
            if TURNED:
                product = tl.trans(product)
            at = offset_of(tile * ROWS, rank) + (local[:, None] * rank + direction)
            wanted = row_inside & (direction < rank)
            write(projected + at, product.to(projected.dtype.element_ty), wanted, EVEN and rank % DIRECTIONS == 0)


@triton.jit
def _affine(
    weight, bias, mean, inverse_std, start, width, NORM: tl.constexpr, SHORT: tl.constexpr, COLUMNS: tl.constexpr
):
    # Batch norm's scale, shift and mean of a tile's columns; outside the width all is zero. The mean of numbers of 16
    # bits is in the shift: what that rounds off is far below what they are rounded to themselves.
    columns = start + tl.arange(0, COLUMNS)
    inside = columns < width
    scale = tl.zeros((COLUMNS,), tl.float32)
    shift, middle = scale, scale
    if NORM:
        scale = tl.load(weight + columns, inside, 0.0).to(tl.float32) * tl.load(inverse_std + columns, inside, 0.0)
        shift = tl.load(bias + columns, inside, 0.0).to(tl.float32)
        middle = tl.load(mean + columns, inside, 0.0)
        if SHORT:
            shift -= middle * scale
    return scale, shift, middle


@triton.jit
def _directions(
    basis, centre, start, direction, width, rank, PROJECT: tl.constexpr, CENTRE: tl.constexpr, COLUMNS: tl.constexpr
):
    # A tile of the basis, and the mean of its rows.
    columns = start + tl.arange(0, COLUMNS)
    inside = columns < width
    zero = tl.zeros((COLUMNS,), tl.float32)
    if CENTRE:
        zero = tl.load(centre + columns, inside, 0.0).to(tl.float32)
    if PROJECT:
        part = tl.load(basis + columns[:, None] * rank + direction, inside[:, None] & (direction < rank), 0.0)
    else:
        part = zero
    return part, zero
