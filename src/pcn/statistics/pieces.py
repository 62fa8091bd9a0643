"""A block cut into pieces for products: shifted where its means are large, untouched where they are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from pcn.statistics.blocks import working_precision

MAX_PIECE = 64 * 2**20  # numbers in one temporary: 256 MB in fp32
CPU_PIECE = 2**22  # on a CPU a piece stays near the cache, yet is worth waking all threads for
LONGEST_SUM = 8192  # samples that are summed up in fp32 before fp64 takes over
PILOT_SAMPLES = 8192
SMALL_MEAN = 4.0  # relative to the spread: up to here squares lose no more than four bits to the mean
KERNEL = True  # whether blocks may go to the Triton kernel on a GPU
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
KERNEL_WIDTH = 512  # plain matrix products do well on wider blocks
KERNEL_SIZE = 2**22  # numbers in a block: with fewer there is nothing to gain that compiling would not cost
KERNEL_POSITIONS = 16  # a step of the kernel ends where an entry does, so that short entries leave steps mostly empty
KERNEL_MEMORY = 2**17  # bytes of shared memory that one of its programs may need


def pilot_mean(block: Tensor) -> Tensor:
    """About the mean of a block (groups, width), from its first samples; 0 where every channel's mean is small.

    Sums about a mean that is off by a few times the spread are as good as sums about the true one, and a mean of 0
    saves a pass over memory.
    """
    entries = max(1, PILOT_SAMPLES // block.shape[3])
    first = working_precision(block[:entries, :, :, :PILOT_SAMPLES])
    mean = first.mean((0, 3))
    variance = (first - mean[:, :, None]).square_().mean((0, 3))
    large = (mean.square() > SMALL_MEAN**2 * variance).any()
    return torch.where(large, mean, 0)


def pieces(block: Tensor, pilot: Tensor, shift: bool) -> Iterator[Tensor]:
    """Yield a block minus the pilot mean (groups, width) as pieces (summands, groups, width, samples).

    A piece must be used before the next one is asked for, which may overwrite it.
    """
    entries, _, width, positions = block.shape
    untouched = not shift and block.dtype == pilot.dtype
    samples = _samples_in_a_piece(block)
    if entries == 1 and (block.stride(2) == 1 or positions == 1):
        rows = block[0].permute(2, 0, 1)
        for part in rows.split(samples):
            yield (part if untouched else part - pilot).permute(1, 2, 0).unsqueeze(0)
    elif untouched and positions >= 2 * width:
        run = min(positions, LONGEST_SUM)
        for few in block.split(max(1, samples // run)):
            yield from few.split(run, dim=3)
    else:
        yield from _gathered(block, pilot, samples)


def _gathered(block: Tensor, pilot: Tensor, samples: int) -> Iterator[Tensor]:
    """Copy so that channels stand first: whole runs of positions move, at the speed of a plain copy."""
    _, groups, width, positions = block.shape
    step, run = max(1, samples // positions), min(samples, positions)
    buffer = torch.empty(groups * width * step * run, dtype=pilot.dtype, device=pilot.device)
    for few in block.split(step):
        for part in few.permute(1, 2, 0, 3).split(run, dim=3):
            piece = buffer[: part.numel()].view(part.shape)
            torch.sub(part, pilot[:, :, None, None], out=piece)
            yield piece.flatten(2).unsqueeze(0)


def _samples_in_a_piece(block: Tensor) -> int:
    """Enough to repay the output of a product, never above the bound on memory."""
    _, groups, width, _ = block.shape
    channels = groups * width
    wanted = CPU_PIECE if block.device.type == "cpu" else MAX_PIECE
    return max(1, min(max(wanted // channels, 4 * width), MAX_PIECE // channels))


def add_gram_(sums: Tensor, piece: Tensor) -> None:
    """Add x xᵀ over all samples of a piece (summands, g, w, samples) to fp64 sums (g, w, w)."""
    summands, groups, width, samples = piece.shape
    length = max(LONGEST_SUM // 8, 4 * width)
    parts = samples // length
    if summands == groups == 1 and parts > 1:
        # A long sum becomes several, which a GPU works on side by side.
        whole = piece[0, 0, :, : parts * length].view(width, parts, length).transpose(0, 1)
        sums += torch.bmm(whole, whole.mT).sum(0, dtype=torch.float64)
        piece = piece[..., parts * length :]
    for part in piece.split(length, dim=3) if piece.numel() else ():
        flat = part.flatten(0, 1)
        sums += torch.bmm(flat, flat.mT).view(summands, groups, width, width).sum(0, dtype=torch.float64)


def suits_kernel(block: Tensor, pilot: Tensor) -> bool:
    """Whether a block is best summed up by :mod:`pcn.statistics.gram_kernel`."""
    entries, _, width, positions = block.shape
    return (
        KERNEL
        and block.is_cuda
        and block.dtype in KERNEL_TYPES
        and pilot.dtype == torch.float32
        and width <= KERNEL_WIDTH
        and block.numel() >= KERNEL_SIZE
        and (entries == 1 or positions >= KERNEL_POSITIONS)
        and _runs_kernel(block.device)
    )


@cache
def _runs_kernel(device: torch.device) -> bool:
    # AMD's devices do not have this property.
    memory = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    return memory >= KERNEL_MEMORY and find_spec("triton") is not None


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Multiply fp32 matrices in fp32: no TF32, no bf16, no autocast; the caller's settings come back afterwards."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    precisions = [backend.fp32_precision for backend in backends]
    try:
        everywhere = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer, per-backend switches alone, which the older one cannot express
        everywhere = "highest"
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(everywhere)
        for backend, precision in zip(backends, precisions, strict=True):
            backend.fp32_precision = precision
