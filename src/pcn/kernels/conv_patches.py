"""What a convolution multiplies: the patches of an image, as rows of a product that are read but never written.

Images have their channels last in memory. A patch is kernel_height x kernel_width positions of all channels, in this
order; a chunk of it is read for a tile of output positions at once, zeros where it lies outside of the image.
"""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

NOWHERE = tl.constexpr(-(2**24))  # a row of no image


@triton.jit
def corners(start, last, sizes: tl.constexpr, ROWS: tl.constexpr):
    # Row, column and offset of the patches' first positions, and the offset of the first patch's image. Offsets within
    # a tile have 32 bits: they need half the registers.
    height: tl.constexpr = sizes[0]
    width: tl.constexpr = sizes[1]
    channels: tl.constexpr = sizes[2]
    stride: tl.constexpr = sizes[6]
    padding: tl.constexpr = sizes[7]
    out_height: tl.constexpr = sizes[8]
    out_width: tl.constexpr = sizes[9]
    area: tl.constexpr = out_height * out_width
    image = start // area
    local = tl.arange(0, ROWS)
    position = (start - image * area).to(tl.int32) + local
    later = position // area
    position -= later * area
    out_row = position // out_width
    row = out_row * stride - padding
    column = (position - out_row * out_width) * stride - padding
    at = ((later * height + row) * width + column) * channels
    row = tl.where(local < last - start, row, NOWHERE)
    return row[:, None], column[:, None], at[:, None], tl.cast(image, tl.int64) * (height * width * channels)


@triton.jit
def patches(x, corner, start, sizes: tl.constexpr, DEPTH: tl.constexpr, TAIL: tl.constexpr, NEAR: tl.constexpr):
    # A chunk of the patches, from the given number on; its tail may reach beyond them. Copies of 16 bytes pass L1 by,
    # those of 8 find there what neighbouring patches share.
    row, column, at, image = corner
    height: tl.constexpr = sizes[0]
    width: tl.constexpr = sizes[1]
    channels: tl.constexpr = sizes[2]
    kernel_height: tl.constexpr = sizes[4]
    kernel_width: tl.constexpr = sizes[5]
    padding: tl.constexpr = sizes[7]
    number = start + tl.arange(0, DEPTH)
    tap = start // channels if channels % DEPTH == 0 else number // channels  # where one holds the chunk, a scalar
    down = tap // kernel_width
    right = tap - down * kernel_width
    there = (row + down >= 0) & (row + down < height)
    if padding > 0:
        there = there & (column + right >= 0) & (column + right < width)
    if TAIL:
        there = there & (number < kernel_height * kernel_width * channels)
    if NEAR:
        there = there & (number // 4 >= 0)  # always; but a mask that may change every 8 bytes makes copies of 8 bytes
    within = (down * width + right) * channels + (number - tap * channels)
    return tl.load(x + image + (at + within), there, 0.0)
