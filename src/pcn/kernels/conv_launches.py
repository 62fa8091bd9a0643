"""How convolutions are run: launches that are worth timing, by size, with PyTorch's own among them."""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
from torch import Tensor

from pcn.kernels.conv_reference import Geometry
from pcn.kernels.launch import STOCK, Launch, programs
from pcn.kernels.tiles import precision

NARROW = 32  # channels up to which our kernels are the usual ones
LARGEST_KEPT = 18432  # numbers of a weight's tile that stays on the chip
LONGEST_AHEAD = 160  # numbers of a patch of which tiles are read ahead as a whole
OFFSETS = 2**31  # within a tile: they have 32 bits
MOST_ROWS = 128  # of a tile

# Rows, columns, warps, stages. A depth of 0 is that of one position. With one stage nothing is read ahead, but all by
# way of L1: other programs fill the time. A processor has registers and memory for about as many programs as are said.
AHEAD = [
    Launch(64, 64, 4, 2, depth=128, per_processor=3, kept=True),
    Launch(64, 64, 4, 2, depth=0, per_processor=3, kept=True),
    Launch(128, 64, 4, 2, depth=0, per_processor=2, kept=True),
    Launch(64, 64, 4, 2, depth=0, per_processor=3, kept=True, near=True),
    Launch(64, 64, 4, 1, depth=0, per_processor=4, kept=True),
    Launch(128, 64, 8, 2, depth=0, per_processor=2, kept=True),
]
KEPT = [Launch(64, 64, 4, 1, depth=0, per_processor=3, kept=True)]
STEPWISE = [
    Launch(64, 128, 4, 3, depth=0, per_processor=2),
    Launch(64, 128, 8, 3, depth=0, per_processor=2),
    Launch(64, 64, 4, 3, depth=0, per_processor=3),
    Launch(128, 128, 8, 3, depth=0, per_processor=1),
]
BACK_KEPT = [Launch(128, 64, 4, 1, depth=0, per_processor=3, kept=True)]
BACK = [
    Launch(128, 64, 8, 3, depth=64, per_processor=3),
    Launch(128, 64, 8, 4, depth=64, per_processor=2),
    Launch(128, 64, 4, 3, depth=64, per_processor=3),
    Launch(128, 64, 4, 1, depth=64, per_processor=4),
    Launch(128, 64, 4, 2, depth=64, per_processor=4),
    Launch(128, 64, 4, 2, depth=64, per_processor=4, near=True),
]
SHIFTED = [
    Launch(128, 64, 4, 3, depth=64, per_processor=2, shifted=True),
    Launch(128, 64, 8, 3, depth=64, per_processor=2, shifted=True),
    Launch(64, 64, 4, 3, depth=64, per_processor=3, shifted=True),
    Launch(128, 64, 8, 4, depth=32, per_processor=2, shifted=True),
]
WEIGHT = [  # always with tiles read ahead: Triton 3.6 goes wrong in the last, smaller product otherwise
    Launch(64, 64, 4, 3, depth=128, per_processor=2),
    Launch(64, 64, 4, 2, depth=128, per_processor=4),
    Launch(64, 64, 4, 2, depth=64, per_processor=2),
    Launch(64, 64, 4, 2, depth=128, per_processor=4, near=True),
    Launch(64, 128, 8, 2, depth=128, per_processor=1),
    Launch(64, 128, 8, 3, depth=64, per_processor=1),
]


def forward_launches(geometry: Geometry, x: Tensor) -> list[Launch]:
    """Ways to convolve, the usual one first."""
    if geometry.patch <= LONGEST_AHEAD:
        return _with_stock(AHEAD, geometry, x)
    return _with_stock(STEPWISE + (KEPT if _keeps(geometry) else []), geometry, x)


def weight_launches(geometry: Geometry, x: Tensor) -> list[Launch]:
    """Ways to find the weight's gradient, the usual one first."""
    return _with_stock(WEIGHT, geometry, x)


def input_launches(geometry: Geometry, x: Tensor) -> list[Launch]:
    """Ways to find the images' gradient, the usual one first."""
    back = backwards(geometry)
    if back is None:
        return [STOCK]
    shifted = [launch for launch in SHIFTED if _shifts(launch, back)]
    return _with_stock(BACK + (BACK_KEPT if _keeps(back) else []) + shifted, back, x)


def backwards(geometry: Geometry) -> Geometry | None:
    """The convolution that takes the gradient of what came out to that of what went in, if there is one."""
    padding = geometry.kernel_height - 1 - geometry.padding
    if geometry.stride > 1 or padding < 0 or geometry.kernel_height != geometry.kernel_width:
        return None
    return geometry._replace(
        height=geometry.out_height,
        width=geometry.out_width,
        channels=geometry.filters,
        filters=geometry.channels,
        padding=padding,
    )


def shared_depth(launch: Launch, geometry: Geometry) -> int:
    """How many channels are multiplied at once where a chunk has those of one position alone.

    >>> shared_depth(Launch(64, 64, depth=64), Geometry(32, 32, 96, 64, 3, 3, 1, 1))
    32
    """
    return min(geometry.channels & -geometry.channels, launch.depth)


def _shifts(launch: Launch, geometry: Geometry) -> bool:
    """Whether tiles are whole rows of images that stay as large as they are."""
    same = (geometry.out_height, geometry.out_width) == (geometry.height, geometry.width)
    return same and launch.rows % geometry.width == 0 and shared_depth(launch, geometry) >= 16


def _with_stock(ours: list[Launch], geometry: Geometry, x: Tensor) -> list[Launch]:
    exact = x.dtype == torch.float32 and precision(x) == "ieee"  # not for tensor cores
    if exact or not _fits(geometry):
        return [STOCK]
    columns = _columns(geometry)
    ours = [replace(each, columns=min(each.columns, columns)) for each in ours if each.columns <= max(64, columns)]
    narrow = min(geometry.channels, geometry.filters) <= NARROW
    return [*ours, STOCK] if narrow else [STOCK, *ours]


def _keeps(geometry: Geometry) -> bool:
    """Whether a tile of the weight fits on the chip."""
    return geometry.patch * min(64, _columns(geometry)) <= LARGEST_KEPT


def _columns(geometry: Geometry) -> int:
    return max(16, int(triton.next_power_of_2(geometry.filters)))


def _fits(geometry: Geometry) -> bool:
    """Whether the images that a tile may see have offsets of 32 bits."""
    image = geometry.height * geometry.width * geometry.channels
    return image * (MOST_ROWS // (geometry.out_height * geometry.out_width) + 2) < OFFSETS


def chunks(launch: Launch, geometry: Geometry) -> tuple[int, int]:
    """How much of a patch is multiplied at once, and after the whole chunks: powers of two, as products need them.

    >>> chunks(Launch(64, 64, depth=128), Geometry(32, 32, 16, 64, 3, 3, 1, 1))
    (128, 16)
    """
    position = geometry.channels & -geometry.channels
    depth = launch.depth or (min(position, 128) if position >= 16 else 64)
    depth = max(16, min(depth, int(triton.next_power_of_2(geometry.patch + 1)) // 2))
    left = geometry.patch % depth
    return depth, max(16, int(triton.next_power_of_2(left))) if left else 0


def share(count: int, launch: Launch, device: torch.device, times: int) -> tuple[int, int]:
    """How many positions a program gets, whole tiles of them, and how many programs that makes.

    ``times`` is how many programs there are for the same positions.
    """
    wanted = max(1, programs(device, launch.per_processor) // times)
    each = triton.cdiv(triton.cdiv(count, launch.rows), wanted) * launch.rows
    return each, triton.cdiv(count, each)
