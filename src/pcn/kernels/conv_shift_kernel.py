"""The gradient of a convolution's images of few channels, which reads what came back once for every row of taps.

The product with every tap of a row is taken where a position stands, and moved sideways afterwards: the few channels
that come out are moved on the chip, where the many that go in would be read again. A tile has whole rows of an image.
"""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pcn.kernels.conv_launches import share, shared_depth
from pcn.kernels.conv_reference import Geometry
from pcn.kernels.launch import Launch
from pcn.kernels.tiles import multiply, offset_of, precision


def convolve_shifted(coming: Tensor, weight: Tensor, back: Geometry, launch: Launch) -> Tensor:
    """Return the images' gradient, given the convolution ``back`` that leads to it; channels are last in all three."""
    d_x = coming.new_empty(len(coming), back.height, back.width, back.filters)
    count = d_x.numel() // back.filters
    if not count:
        return d_x
    tiles = triton.cdiv(back.filters, launch.columns)
    each, parts = share(count, launch, coming.device, tiles)
    pcn_conv_shift[(parts, tiles)](
        coming, weight, d_x, count, each, *back[:6], back.padding,
        PRECISION=precision(coming), ROWS=launch.rows, COLUMNS=launch.columns, DEPTH=shared_depth(launch, back),
        STAGES=launch.stages, num_warps=launch.warps,
    )  # fmt: skip
    return d_x


@triton.jit(do_not_specialize=["count", "each"])
def pcn_conv_shift(
    d_y, weight, d_x, count, each,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, filters: tl.constexpr,
    kernel_height: tl.constexpr, kernel_width: tl.constexpr, padding: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    filter = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = filter < filters
    chunks: tl.constexpr = channels // DEPTH
    taps: tl.constexpr = kernel_height * kernel_width
    area: tl.constexpr = height * width
    first = part * each
    last = tl.minimum(first + each, count)
    local = tl.arange(0, ROWS)
    channel = tl.arange(0, DEPTH)
    column = local % width
    for begin in tl.range(first, last, ROWS):
        there = local < last - begin
        row = tl.cast(begin % area, tl.int32) // width + local // width
        row = row % height  # a tile may have more than one image
        read = d_y + offset_of(begin, channels) + (local * channels)[:, None]
        products = ()
        for _ in tl.static_range(kernel_width):
            products += (tl.zeros((ROWS, COLUMNS), tl.float32),)
        for step in tl.range(0, kernel_height * chunks, num_stages=STAGES):
            tap = step // chunks
            number = (step % chunks) * DEPTH + channel
            down = tap - padding
            seen = there & (row + down >= 0) & (row + down < height)
            tile = tl.load(read + (down * (width * channels) + number), seen[:, None], 0.0)
            added = ()
            for right in tl.static_range(kernel_width):
                at = (number * taps + (taps - 1 - right - tap * kernel_width))[:, None] * filters + filter
                factor = tl.load(weight + at, inside[None, :], 0.0)
                added += (multiply(tile, factor, products[right], PRECISION),)
            products = added
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for right in tl.static_range(kernel_width):
            aside = right - padding
            if aside == 0:
                total += products[right]
            else:
                index = tl.minimum(tl.maximum(local + aside, 0), ROWS - 1)
                moved = tl.gather(products[right], tl.broadcast_to(index[:, None], (ROWS, COLUMNS)), 0)
                total += tl.where(((column + aside >= 0) & (column + aside < width))[:, None], moved, 0.0)
        to = d_x + offset_of(begin, filters) + (local[:, None] * filters + filter)
        tl.store(to, total.to(d_x.dtype.element_ty), there[:, None] & inside)
