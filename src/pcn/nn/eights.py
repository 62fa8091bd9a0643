"""Numbers of channels that a GPU is fast with: zeros make up what is missing.

Products of 16-bit numbers take eights. Convolutions of several taps want more: those of 40 or 56 channels take 1.4
times as long as those of 64, which multiply more (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

EIGHT = 8
CONVOLVED, MANY = 32, 128  # the step of a convolution's channels, from more than two eights up to so many
DEVICES = {"cuda"}  # where it counts


@contextmanager
def as_they_are() -> Iterator[None]:
    """Have no device want more channels than there are: for those who count operations."""
    before = {*DEVICES}
    DEVICES.clear()
    try:
        yield
    finally:
        DEVICES.update(before)


def in_eights(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *, partly_filled: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return input, weight and bias of an ordinary convolution in which ``dtype`` is multiplied, filled up with zeros.

    An input that is ``partly_filled`` may have some already. One that does not fit is left for PyTorch to refuse.
    """
    at = 1 - weight.dim()  # where an input has its channels
    taps = weight.shape[2:].numel()
    filters, channels = (wanted(count, x.device, dtype, taps) for count in weight.shape[:2])
    most = channels if partly_filled else weight.shape[1]
    if not weight.shape[1] <= x.shape[at] <= most:
        return x, weight, bias
    weight = filled(filled(weight, 1, channels), 0, filters)
    return filled(x, at, channels), weight, None if bias is None else filled(bias, 0, filters)


def wanted(count: int, device: torch.device, dtype: torch.dtype, taps: int = 1) -> int:
    """How many channels a device wants where there are ``count``, in a product or a convolution of so many taps."""
    if device.type not in DEVICES or dtype.itemsize != 2:
        return count
    step = CONVOLVED if taps > 1 and 2 * EIGHT < count <= MANY else EIGHT
    return -(-count // step) * step


def filled(tensor: Tensor, dim: int, size: int) -> Tensor:
    """Put zeros behind what there is, up to a size.

    >>> filled(torch.ones(2), 0, 3)
    tensor([1., 1., 0.])
    """
    behind = tensor.dim() - 1 - dim % tensor.dim()
    missing = size - tensor.shape[dim]
    return F.pad(tensor, [0, 0] * behind + [0, missing]) if missing > 0 else tensor


def cut(y: Tensor, dim: int, size: int) -> Tensor:
    """Leave out what was made up, dense and in the same layout: whoever reads it may want to view it.

    The gradient has y's layout too, that of a slice would not: a convolution's backward pass would copy it first.

    >>> cut(torch.ones(2, 8, 3), 1, 5).is_contiguous()
    True
    """
    if y.shape[dim] == size:
        return y
    behind = y.dim() - 1 - dim % y.dim()
    return F.pad(y, [0, 0] * behind + [0, size - y.shape[dim]])
