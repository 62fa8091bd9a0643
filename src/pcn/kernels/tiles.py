"""What the kernels share: the sizes of tiles, and products of them."""

# A kernel's arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from pcn.kernels.dispatch import INTERPRETED
from pcn.kernels.launch import Launch

MOST_DIRECTIONS = 128
DEEPER = 256  # directions of a tile in launches that are worth timing where there are more
MOST_COLUMNS = 512
LARGEST_BASIS = 4096  # elements of a basis' tile: it stays on the chip while rows pass
WIDER_BASIS = 8192  # the same for launches that are worth timing
Sizes = tuple[int, int, int, int]  # rows and columns of a tile, warps, stages


def rank_tile(rank: int) -> int:
    """The number of directions in a tile: all of them, up to a limit; products need sixteen."""
    return min(max(16, int(triton.next_power_of_2(max(rank, 1)))), MOST_DIRECTIONS)


def deep_tiles(sizes: Sequence[Sizes], rank: int) -> list[Launch]:
    """Launches that take in more directions at once than is usual, where there are more."""
    if rank <= MOST_DIRECTIONS:
        return []
    return [Launch(rows, columns, warps, stages, depth=DEEPER) for rows, columns, warps, stages in sizes]


def column_tile(width: int, directions: int = 16, basis: int = LARGEST_BASIS) -> int:
    """The number of columns in a tile: all of them where they are few."""
    most = min(MOST_COLUMNS, max(64, basis // directions))
    return min(max(16, int(triton.next_power_of_2(width))), most)


def even(rows: Tensor, launch: Launch) -> bool:
    """Whether every tile of a launch is full.

    >>> even(torch.ones(64, 32), Launch(16, 32)), even(torch.ones(65, 32), Launch(16, 32))
    (True, False)
    """
    count, width = rows.shape
    return count % launch.rows == 0 and width % launch.columns == 0


def describable(rows: Tensor) -> bool:
    """Whether the engine that copies tiles can take these: rows begin at multiples of 16 bytes, and are not too many.

    >>> describable(torch.ones(4, 8).half()), describable(torch.ones(4, 9).half()), describable(torch.ones(4, 8))
    (True, False, False)
    """
    count, width = rows.shape
    aligned = rows.data_ptr() % 16 == 0 and width * rows.element_size() % 16 == 0
    able = not rows.is_cuda or torch.cuda.get_device_capability(rows.device) >= (9, 0)
    return rows.element_size() == 2 and aligned and count < 2**31 and able


def described(rows: Tensor, launch: Launch) -> Tensor | TensorDescriptor:
    """Rows as a launch is given them: as a pointer, or described to the engine that copies tiles."""
    return TensorDescriptor.from_tensor(rows, [launch.rows, launch.columns]) if launch.described else rows


def precision(basis: Tensor | None) -> str:
    """How products are made: fp32 numbers are rounded to TF32 where PyTorch's own may be."""
    if INTERPRETED:
        return "widened"  # the interpreter cannot multiply bf16
    allowed = basis is not None and basis.is_cuda and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if allowed else "ieee"


def product_key(basis: Tensor | None) -> str:
    """What is remembered of a product, beside its sizes: the dtype of its factors and how they are multiplied.

    >>> product_key(None), product_key(torch.ones(4, 2, dtype=torch.bfloat16))[:14]
    ('alone', 'torch.bfloat16')
    """
    return "alone" if basis is None else f"{basis.dtype} {precision(basis)}"


def or_any(pointer: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """Put some pointer where there is no tensor: nothing is read there."""
    return [pointer if tensor is None else tensor for tensor in tensors]


@triton.jit
def offset_of(row, width):
    # 64 bits: a batch may hold more than 2^31 elements. Within a tile 32 are enough, and need half the registers.
    return tl.cast(row, tl.int64) * width


@triton.jit
def read(pointer, there, EVEN: tl.constexpr):
    # Tiles that end where the tensor ends need no mask, which costs an instruction or two for every element.
    if EVEN:
        return tl.load(pointer)
    else:
        return tl.load(pointer, there, 0.0)


@triton.jit
def read_tile(rows, first, at, there, width, COLUMNS: tl.constexpr, EVEN: tl.constexpr, DESCRIBED: tl.constexpr):
    # The tile of a program's columns that begins at a row; beyond the tensor all is zero.
    if DESCRIBED:
        return rows.load([tl.cast(first, tl.int32), tl.program_id(1) * COLUMNS])
    else:
        return read(rows + offset_of(first, width) + at, there, EVEN)


@triton.jit
def write(pointer, value, there, EVEN: tl.constexpr):
    if EVEN:
        tl.store(pointer, value)
    else:
        tl.store(pointer, value, there)


@triton.jit
def multiply(left, right, product, PRECISION: tl.constexpr):
    if PRECISION == "widened":
        return tl.dot(left.to(tl.float32), right.to(tl.float32), product, input_precision="ieee")
    return tl.dot(left, right, product, input_precision=PRECISION)
