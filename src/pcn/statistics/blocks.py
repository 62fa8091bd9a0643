"""An activation as blocks of channels by positions, centred and cut into pieces that fit the cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from pcn.layers import LayerType

MAX_PIECE = 64 * 2**20  # numbers in one temporary: 256 MB in fp32
CPU_PIECE = 2**20  # on a CPU a piece stays in the cache between the subtraction and the product

_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def as_block(x: Tensor, kind: LayerType, groups: int = 1) -> Tensor:
    """View a layer's input as (entries, groups, channels per group, positions), copying only where strides forbid it.

    >>> as_block(torch.ones(8, 6, 5, 5), LayerType("conv2d", 2), groups=2).shape
    torch.Size([8, 2, 3, 25])
    """
    if not kind.spatial:
        return _from_rows(x.reshape(-1, x.shape[-1]), groups)
    if x.dim() == kind.spatial + 1:
        x = x.unsqueeze(0)
    channels = x.shape[1]
    positions = x[0, 0].numel()
    if positions == 1 or (x.stride(1) == 1 and channels > 1):
        return _from_rows(x.movedim(1, -1).reshape(-1, channels), groups)
    return x.flatten(2).view(len(x), groups, channels // groups, positions)


def rows_of(block: Tensor) -> Tensor:
    """Return a block as (samples, channels), a view where the block was made from rows."""
    entries, groups, width, positions = block.shape
    return block.permute(0, 3, 1, 2).reshape(entries * positions, groups * width)


def pooled(x: Tensor, kind: LayerType, size: int | None) -> Tensor:
    """Average a convolution's input over squares of ``size`` positions; other inputs pass through."""
    if size is None or not kind.spatial:
        return x
    spatial = x.shape[-kind.spatial :]
    window = tuple(min(size, length) for length in spatial)
    return _POOLS[kind.spatial](working_precision(x), window)


def shifted_pieces(block: Tensor, pilot: Tensor) -> Iterator[Tensor]:
    """Yield a block minus the pilot mean (groups, width) as pieces (groups, width, samples), each to be used at once.

    The next piece may overwrite the one before it.
    """
    entries, groups, width, positions = block.shape
    samples = piece_samples(block)
    if _is_rows(block):
        rows = block[0].permute(2, 0, 1)
        for start in range(0, positions, samples):
            yield torch.sub(rows[start : start + samples], pilot).permute(1, 2, 0)
        return
    step, run = max(1, samples // positions), min(samples, positions)
    buffer = torch.empty(groups * width * step * run, dtype=pilot.dtype, device=pilot.device)
    shift = pilot[:, :, None, None]
    for start in range(0, entries, step):
        for first in range(0, positions, run):
            part = block[start : start + step, :, :, first : first + run].permute(1, 2, 0, 3)
            # Whole runs of positions move, so channels come to stand first at the speed of a plain copy.
            piece = buffer[: part.numel()].view(part.shape)
            torch.sub(part, shift, out=piece)
            yield piece.flatten(2)


def piece_samples(block: Tensor) -> int:
    """The number of samples in a piece: enough to repay a product's output, never above the bound on memory."""
    _, groups, width, _ = block.shape
    channels = groups * width
    wanted = CPU_PIECE if block.device.type == "cpu" else MAX_PIECE
    return max(1, min(max(wanted // channels, 4 * width), MAX_PIECE // channels))


def working_precision(x: Tensor) -> Tensor:
    """Bring half precision to fp32; fp32 and fp64 stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


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


def _from_rows(rows: Tensor, groups: int) -> Tensor:
    samples, channels = rows.shape
    return rows.view(samples, groups, channels // groups).permute(1, 2, 0).unsqueeze(0)


def _is_rows(block: Tensor) -> bool:
    return block.shape[0] == 1 and (block.stride(2) == 1 or block.shape[3] == 1)
