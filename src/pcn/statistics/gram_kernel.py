"""The sum and the Gram matrix of a block in one pass over memory: fp32's precision at the speed of tensor cores.

Needs Triton, which comes with PyTorch's builds for CUDA; see :func:`pcn.statistics.pieces.suits_kernel`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcn.statistics.pieces import LONGEST_SUM

STEP = 32  # samples in one product: few enough that the tensor cores' truncating sums stay close to fp32's
WIDEST_TILE = 128  # rows and columns of the Gram matrix in one program
REGISTERS = 128  # for each thread of a narrow program, so that four of them fit on a multiprocessor


def block_sums(block: Tensor, pilot: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fp64 sums of d = x - pilot, (g, w), and of d dᵀ, (g, w, w), over a block (entries, g, w, positions).

    The same block gives the same bits each time: programs sum up parts of their own in fp32, which fp64 adds up.
    """
    entries, groups, width, positions = block.shape
    tile = min(max(16, triton.next_power_of_2(width)), WIDEST_TILE)
    tiles = triton.cdiv(width, tile) ** 2
    steps_per_entry = triton.cdiv(positions, STEP)
    steps = entries * steps_per_entry
    parts = max(1, _resident_programs(block.device, tile) // (tiles * groups), triton.cdiv(steps * STEP, LONGEST_SUM))
    steps_per_part = max(1, triton.cdiv(steps, parts))
    parts = triton.cdiv(steps, steps_per_part)
    # The last of the w + 1 rows holds the sum of d.
    sums = torch.empty(parts, groups, width + 1, width, dtype=torch.float32, device=block.device)
    if parts:
        with torch.cuda.device_of(block):  # where Triton launches
            pcn_gram[(parts * tiles, groups)](
                block, pilot.contiguous(), sums, width, positions, steps, steps_per_entry, steps_per_part,
                *_strides(block), TILE=tile, STEP=STEP, ALONE=tiles == 1,
                num_warps=8 if tile == WIDEST_TILE else 4, num_stages=3, enable_fp_fusion=False,
                maxnreg=None if tile == WIDEST_TILE else REGISTERS,
            )  # fmt: skip
    added = sums.sum(0, dtype=torch.float64)
    gram = added[:, :width]
    return added[:, width], (gram + gram.mT) / 2


def _resident_programs(device: torch.device, tile: int) -> int:
    """How many programs a device runs at once: four narrow ones on a multiprocessor, or a wide one."""
    if device.type == "cpu":  # in Triton's interpreter
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count * (1 if tile == WIDEST_TILE else 4)


def _strides(block: Tensor) -> list[int]:
    """A dimension of size 1 has an arbitrary stride, for which Triton would compile anew."""
    return [stride if size > 1 else 0 for size, stride in zip(block.shape, block.stride(), strict=True)]


@triton.jit(do_not_specialize=["steps", "steps_per_entry", "steps_per_part"])
def pcn_gram(
    x, pilot, sums, width, positions, steps, steps_per_entry, steps_per_part,
    entry_stride, group_stride, channel_stride, position_stride,
    TILE: tl.constexpr, STEP: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    # With d = h + l, h the TF32 number nearest to d, the product d dᵀ is h hᵀ + h lᵀ + l hᵀ to fp32's precision. That
    # is the symmetric part of h (h + 2 l)ᵀ: two products of tensor cores instead of three.
    tiles = tl.cdiv(width, TILE)
    part, tile, group = tl.program_id(0) // (tiles * tiles), tl.program_id(0) % (tiles * tiles), tl.program_id(1)
    rows = tile // tiles * TILE + tl.arange(0, TILE)
    columns = tile % tiles * TILE + tl.arange(0, TILE)
    within = tl.arange(0, STEP)
    along = within.to(tl.int64)[None, :] * position_stride
    left_offsets = rows.to(tl.int64)[:, None] * channel_stride + along
    right_offsets = columns.to(tl.int64)[:, None] * channel_stride + along
    left_pilot = tl.load(pilot + group * width + rows, rows < width, 0.0)[:, None]
    right_pilot = tl.load(pilot + group * width + columns, columns < width, 0.0)[:, None]
    total = tl.zeros((TILE, STEP), tl.float32)
    gram = tl.zeros((TILE, TILE), tl.float32)
    for step in range(part * steps_per_part, tl.minimum((part + 1) * steps_per_part, steps)):
        start = step % steps_per_entry * STEP
        at = (step // steps_per_entry).to(tl.int64) * entry_stride + start.to(tl.int64) * position_stride
        at += group.to(tl.int64) * group_stride
        inside = (start + within < positions)[None, :]
        right = tl.load(x + at + right_offsets, inside & (columns < width)[:, None], 0.0).to(tl.float32)
        right = tl.where(inside, right - right_pilot, 0.0)
        high = _nearest_tf32(right)
        if ALONE:
            left = high
        else:
            left = tl.load(x + at + left_offsets, inside & (rows < width)[:, None], 0.0).to(tl.float32)
            left = _nearest_tf32(tl.where(inside, left - left_pilot, 0.0))
        # Tensor cores truncate as they add, so a long sum is made outside of them: a product that starts from another
        # one is not merged with the addition after it.
        product = tl.dot(left, tl.trans(2 * (right - high)), input_precision="tf32")
        gram += tl.dot(left, tl.trans(high), product, input_precision="tf32")
        total += right
    sums += (part * tl.num_programs(1) + group).to(tl.int64) * (width + 1) * width
    tl.store(sums + rows[:, None] * width + columns, gram, (rows < width)[:, None] & (columns < width))
    if tile < tiles:
        tl.store(sums + width * width + columns, tl.sum(total, 1), columns < width)


@triton.jit
def _nearest_tf32(x):
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
