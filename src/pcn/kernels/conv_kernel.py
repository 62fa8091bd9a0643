"""A convolution of few channels, and the moments of what comes out while it is still on the chip.

Programs own ranges of positions, tile by tile. What they find of the moments is merged as that of batch_moments is.
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
from pcn.kernels.launch import Launch
from pcn.kernels.moments_kernel import merge, put_part
from pcn.kernels.tiles import multiply, offset_of, precision


def convolve(
    images: Tensor, weight: Tensor, geometry: Geometry, launch: Launch, *, moments: bool, reversed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the convolution, and the moments of its channels (empty unless wanted); channels are last in all three.

    Reversed, the weight is that of the convolution whose images' gradient this is: (channels, ..., filters).
    """
    filters = geometry.filters
    y = images.new_empty(len(images), geometry.out_height, geometry.out_width, filters)
    mean, variance = (images.new_empty(filters if moments else 0, dtype=torch.float32) for _ in range(2))
    count = y.numel() // filters
    if not count:
        return y, mean.fill_(torch.nan), variance.fill_(torch.nan)
    tiles = triton.cdiv(filters, launch.columns)
    each, parts = share(count, launch, images.device, tiles)
    depth, rest = chunks(launch, geometry)
    held = images.new_empty(parts if moments else 0, 3, filters, dtype=torch.float32)  # as batch_moments holds them
    pcn_conv[(parts, tiles)](
        images, weight, y, held, count, each, *geometry, geometry.out_height, geometry.out_width,
        MOMENTS=moments, REVERSED=reversed, KEPT=launch.kept, NEAR=launch.near, PRECISION=precision(images),
        EVEN=count % launch.rows == 0 and filters % launch.columns == 0, ROWS=launch.rows, COLUMNS=launch.columns,
        DEPTH=depth, REST=rest, BANDS=min(launch.warps, launch.rows // 16), STAGES=launch.stages,
        num_warps=launch.warps,
    )  # fmt: skip
    if moments:
        merge(held, mean, variance, count, each)
    return y, mean, variance


@triton.jit(do_not_specialize=["count", "each"])
def pcn_conv(
    x, weight, y, held, count, each,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, filters: tl.constexpr,
    kernel_height: tl.constexpr, kernel_width: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    out_height: tl.constexpr, out_width: tl.constexpr,
    MOMENTS: tl.constexpr, REVERSED: tl.constexpr, KEPT: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, REST: tl.constexpr,
    BANDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    sizes: tl.constexpr = (
        height, width, channels, filters, kernel_height, kernel_width, stride, padding, out_height, out_width
    )  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    filter = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = filter < filters
    size: tl.constexpr = kernel_height * kernel_width * channels
    whole: tl.constexpr = size // DEPTH  # chunks of a patch
    first = part * each
    last = tl.minimum(first + each, count)
    local = tl.arange(0, ROWS)
    written = local[:, None] * filters + filter
    kept = ()
    if KEPT:
        for chunk in tl.static_range(whole):
            kept += (_weights(weight, chunk * DEPTH, filter, sizes, REVERSED, DEPTH),)
        if REST > 0:
            kept += (_weights(weight, whole * DEPTH, filter, sizes, REVERSED, REST),)
    if MOMENTS:
        shift = _first(x, weight, first, last, filter, sizes, size, COLUMNS, DEPTH)
        sums = tl.zeros((BANDS * 8, COLUMNS), tl.float32)
        squares = tl.zeros((BANDS * 8, COLUMNS), tl.float32)
    for begin in tl.range(first, last, ROWS, num_stages=STAGES if KEPT else 1):
        corner = corners(begin, last, sizes, ROWS)
        product = tl.zeros((ROWS, COLUMNS), tl.float32)
        if KEPT:
            for chunk in tl.static_range(whole):
                patch = patches(x, corner, chunk * DEPTH, sizes, DEPTH, False, NEAR)
                product = multiply(patch, kept[chunk], product, PRECISION)
            if REST > 0:
                patch = patches(x, corner, whole * DEPTH, sizes, REST, size % REST != 0, NEAR)
                product = multiply(patch, kept[whole], product, PRECISION)
        else:
            for start in tl.range(0, size, DEPTH, num_stages=STAGES):
                patch = patches(x, corner, start, sizes, DEPTH, size % DEPTH != 0, NEAR)
                factor = _weights(weight, start, filter, sizes, REVERSED, DEPTH)
                product = multiply(patch, factor, product, PRECISION)
        everything = tl.full((ROWS, COLUMNS), True, tl.int1)
        there = everything if EVEN else (local < last - begin)[:, None] & inside
        value = product.to(y.dtype.element_ty)
        tl.store(y + offset_of(begin, filters) + written, value, there)
        if MOMENTS:
            deviation = tl.where(there, value.to(tl.float32) - shift, 0.0)
            sums += _fold(deviation, ROWS, COLUMNS, BANDS)
            squares += _fold(deviation * deviation, ROWS, COLUMNS, BANDS)
    if MOMENTS:
        put_part(held + part * 3 * filters, shift, sums, squares, last - first, filter, inside, filters)


@triton.jit
def _weights(weight, start, filter, sizes: tl.constexpr, REVERSED: tl.constexpr, DEPTH: tl.constexpr):
    # A chunk of what patches are multiplied with; reversed, the weight is that of the convolution that is undone.
    channels: tl.constexpr = sizes[2]
    filters: tl.constexpr = sizes[3]
    taps: tl.constexpr = sizes[4] * sizes[5]
    number = start + tl.arange(0, DEPTH)
    if REVERSED:
        tap = number // channels
        at = ((number - tap * channels) * taps + (taps - 1 - tap))[:, None] * filters + filter
    else:
        at = filter * (taps * channels) + number[:, None]
    return tl.load(weight + at, (number < taps * channels)[:, None] & (filter < filters), 0.0)


@triton.jit
def _first(x, weight, first, last, filter, sizes: tl.constexpr, size, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    # What comes out at a program's first position, before it is rounded.
    found = tl.zeros((COLUMNS,), tl.float32)
    corner = corners(first, last, sizes, 1)
    for start in range(0, size, DEPTH):
        patch = patches(x, corner, start, sizes, DEPTH, True, False)
        factor = _weights(weight, start, filter, sizes, False, DEPTH)
        found += tl.sum(tl.trans(patch).to(tl.float32) * factor.to(tl.float32), 0)
    return found


@triton.jit
def _fold(values, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BANDS: tl.constexpr):
    # Sums of those rows that one thread of a product holds, so that no thread has to wait for another.
    pairs = tl.sum(tl.reshape(values, (ROWS // (BANDS * 16), BANDS, 2, 8, COLUMNS)), 2)
    return tl.reshape(tl.sum(pairs, 0), (BANDS * 8, COLUMNS))
