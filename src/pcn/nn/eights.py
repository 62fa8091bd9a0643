"""Channels in eights: a GPU's fast convolutions of 16-bit numbers take no others, so zeros make up what is missing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

EIGHT = 8
DEVICES = {"cuda"}  # where it counts


def in_eights(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the input, weight and bias of an ordinary convolution in ``dtype``, with zeros where channels are missing.

    An input with more channels than the weight takes has zeros there already: the weight is given as many.
    """
    at = 1 - weight.dim()  # where an input has its channels
    channels, filters = x.shape[at], weight.shape[0]
    if x.device.type in DEVICES and dtype.itemsize == 2:
        channels, filters = (-(-count // EIGHT) * EIGHT for count in (channels, filters))
    weight = filled(filled(weight, 1, channels), 0, filters)
    return filled(x, at, channels), weight, None if bias is None else filled(bias, 0, filters)


def filled(tensor: Tensor, dim: int, size: int) -> Tensor:
    """Put zeros behind what there is, up to a size.

    >>> filled(torch.ones(2), 0, 3)
    tensor([1., 1., 0.])
    """
    behind = tensor.dim() - 1 - dim % tensor.dim()
    missing = size - tensor.shape[dim]
    return F.pad(tensor, [0, 0] * behind + [0, missing]) if missing > 0 else tensor
