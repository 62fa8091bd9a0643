"""The gradient of a convolution's weight: sums over positions of what came in times what came back.

Programs own ranges of positions, and add up in registers; their sums are added up in a fixed order.
"""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcn.kernels.conv_launches import chunks, share
from pcn.kernels.conv_patches import corners, patches
from pcn.kernels.conv_reference import Geometry
from pcn.kernels.launch import Launch, programs
from pcn.kernels.tiles import multiply, offset_of, precision

REGISTERS = 144  # of a thread, for sums
IN_FLIGHT = 3  # products of one tile: those of two tiles are under way at once, and the hardware counts to seven
ADDED = 8192  # programs' sums that are added up at once


def weight_gradient(images: Tensor, coming: Tensor, geometry: Geometry, launch: Launch) -> Tensor:
    """Return the gradient (filters, kernel_height, kernel_width, channels), given both with their channels last."""
    filters, size = geometry.filters, geometry.patch
    total = images.new_empty(filters, geometry.kernel_height, geometry.kernel_width, geometry.channels)
    count = coming.numel() // filters
    if not count:
        return total.zero_()
    tiles = triton.cdiv(filters, launch.columns)
    depth, rest = chunks(launch, geometry)
    number, groups, rest = _groups(geometry, launch, depth, rest)
    each, parts = share(count, launch, images.device, tiles * groups)
    held = images.new_empty(parts, filters, size, dtype=torch.float32)
    pcn_conv_weight[(parts, tiles, groups)](
        images, coming, held, count, each, *geometry, geometry.out_height, geometry.out_width,
        NEAR=launch.near, PRECISION=precision(images), ROWS=launch.rows, COLUMNS=launch.columns, DEPTH=depth,
        CHUNKS=number, REST=rest, STAGES=launch.stages, num_warps=launch.warps,
    )  # fmt: skip
    width = total.numel()
    columns = min(max(32, triton.next_power_of_2(triton.cdiv(width, programs(images.device, 2)))), 1024)
    pcn_conv_weight_sum[(triton.cdiv(width, columns),)](
        held, total, parts, width, ADDED=ADDED // columns, COLUMNS=columns
    )
    return total


def _groups(geometry: Geometry, launch: Launch, depth: int, rest: int) -> tuple[int, int, int]:
    """How many chunks of a patch one program sums up, how many programs that takes, and the rest of the patch.

    Where all sums are too many for one program, each has as many whole chunks as the others.
    """
    registers = REGISTERS * 32 * launch.warps // launch.columns
    whole = geometry.patch // depth
    if whole * depth + rest <= registers and whole + bool(rest) <= IN_FLIGHT:
        return whole, 1, rest
    number = triton.cdiv(geometry.patch, depth)
    groups = triton.cdiv(number, min(max(1, registers // depth), IN_FLIGHT))
    return triton.cdiv(number, groups), groups, 0


@triton.jit(do_not_specialize=["count", "each"])
def pcn_conv_weight(
    x, d_y, held, count, each,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, filters: tl.constexpr,
    kernel_height: tl.constexpr, kernel_width: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    out_height: tl.constexpr, out_width: tl.constexpr,
    NEAR: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, CHUNKS: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    sizes: tl.constexpr = (
        height, width, channels, filters, kernel_height, kernel_width, stride, padding, out_height, out_width
    )  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    filter = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = filter < filters
    size: tl.constexpr = kernel_height * kernel_width * channels
    GROUPED: tl.constexpr = size > CHUNKS * DEPTH + REST  # others sum up the rest of a patch
    start = tl.program_id(2) * (CHUNKS * DEPTH) if GROUPED else 0
    local = tl.arange(0, ROWS)
    read = local[:, None] * filters + filter
    first = part * each
    last = tl.minimum(first + each, count)
    sums = ()
    for _ in tl.static_range(CHUNKS):
        sums += (tl.zeros((COLUMNS, DEPTH), tl.float32),)
    if REST > 0:
        sums += (tl.zeros((COLUMNS, REST), tl.float32),)
    for begin in tl.range(first, last, ROWS, num_stages=STAGES):
        corner = corners(begin, last, sizes, ROWS)
        there = (local < last - begin)[:, None] & inside
        back = tl.trans(tl.load(d_y + offset_of(begin, filters) + read, there, 0.0))
        added = ()
        for chunk in tl.static_range(CHUNKS):
            patch = patches(x, corner, start + chunk * DEPTH, sizes, DEPTH, GROUPED, NEAR)
            added += (multiply(back, patch, sums[chunk], PRECISION),)
        if REST > 0:
            patch = patches(x, corner, CHUNKS * DEPTH, sizes, REST, size % REST != 0, NEAR)
            added += (multiply(back, patch, sums[CHUNKS], PRECISION),)
        sums = added
    held += part * filters * size
    for chunk in tl.static_range(CHUNKS):
        _put(held, sums[chunk], filter, inside, start + chunk * DEPTH, size, DEPTH)
    if REST > 0:
        _put(held, sums[CHUNKS], filter, inside, CHUNKS * DEPTH, size, REST)


@triton.jit
def _put(held, sums, filter, inside, start, size, DEPTH: tl.constexpr):
    number = start + tl.arange(0, DEPTH)
    tl.store(held + filter[:, None] * size + number, sums, inside[:, None] & (number < size))


@triton.jit(do_not_specialize=["parts"])
def pcn_conv_weight_sum(held, total, parts, width: tl.constexpr, ADDED: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    sums = tl.zeros((ADDED, COLUMNS), tl.float32)
    for start in range(0, parts, ADDED):
        part = start + tl.arange(0, ADDED)
        at = offset_of(part[:, None], width) + columns
        sums += tl.load(held + at, (part < parts)[:, None] & inside, 0.0)
    tl.store(total + columns, tl.sum(sums, 0).to(total.dtype.element_ty), inside)
