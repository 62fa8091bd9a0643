"""An activation as a block: entries by groups by channels by positions, whatever layer reads it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pcn.layers import LayerType

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


def working_precision(x: Tensor) -> Tensor:
    """Bring half precision to fp32; fp32 and fp64 stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _from_rows(rows: Tensor, groups: int) -> Tensor:
    samples, channels = rows.shape
    return rows.view(samples, groups, channels // groups).permute(1, 2, 0).unsqueeze(0)
