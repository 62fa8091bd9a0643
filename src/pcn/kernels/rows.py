"""Images as rows of channels and back: views, where images have their channels last in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def as_rows(x: Tensor) -> Tensor:
    """Turn (n, channels, *positions) into (n * positions, channels).

    >>> as_rows(torch.ones(2, 3, 4, 5)).shape
    torch.Size([40, 3])
    """
    return x if x.dim() == 2 else x.movedim(1, -1).reshape(-1, x.shape[1])


def from_rows(rows: Tensor, shape: torch.Size) -> Tensor:
    """Turn rows of any number of channels back into images of the shape's positions, channels last in memory."""
    return rows if len(shape) == 2 else rows.view(shape[0], *shape[2:], rows.shape[1]).movedim(-1, 1)
