"""A convolution over single positions whose kernel is not trained: as an operator it keeps nothing of its input."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.utils.flop_counter import register_flop_formula

from pcn.kernels.inductor import fake_of
from pcn.kernels.ops import autocast_
from pcn.layers import CHANNELS_LAST


@custom_op("pcn::pointwise_conv", mutates_args=(), schema="(Tensor x, Tensor kernel) -> Tensor")
def pointwise_conv(x: Tensor, kernel: Tensor) -> Tensor:
    """Return the convolution of x (n, channels, *positions) with a kernel (filters, channels, 1, ...) of its dtype.

    The kernel alone is kept for backward, and takes no gradient: PyTorch's convolution would keep x for that.

    >>> pointwise_conv(torch.ones(2, 3, 4, 4), torch.ones(5, 3, 1, 1)).shape
    torch.Size([2, 5, 4, 4])
    """
    return _forward(x, kernel)


@custom_op("pcn::pointwise_conv_input", mutates_args=(), schema="(Tensor d_y, Tensor kernel) -> Tensor")
def pointwise_conv_input(d_y: Tensor, kernel: Tensor) -> Tensor:
    """Return the gradient of x of :func:`pointwise_conv`."""
    return _backward(d_y, kernel)


def _forward(x: Tensor, kernel: Tensor) -> Tensor:
    y: Tensor = torch.ops.aten.convolution(x, kernel, None, *_sizes(x))
    return y


def _backward(d_y: Tensor, kernel: Tensor) -> Tensor:
    """Call PyTorch's operator, which of x looks at the shape alone when no other gradient is wanted."""
    layout = CHANNELS_LAST.get(d_y.dim())
    if layout is not None and d_y.is_contiguous(memory_format=layout):
        # Strides that say so, for which contiguous() sees no need: the kernel's layout decides on that of the gradient.
        kernel = kernel.reshape(len(kernel), *kernel.shape[2:], -1).movedim(-1, 1)
    x = d_y.new_empty(1).expand(len(d_y), kernel.shape[1], *d_y.shape[2:])
    wanted = True, False, False
    d_x: Tensor = torch.ops.aten.convolution_backward(d_y, x, kernel, None, *_sizes(d_y), wanted)[0]
    return d_x


def _sizes(images: Tensor) -> tuple[Any, ...]:
    """Stride, padding, dilation, and what PyTorch asks for besides."""
    ones, zeros = [1] * (images.dim() - 2), [0] * (images.dim() - 2)
    return ones, zeros, ones, False, zeros, 1


fake_of(pointwise_conv)(_forward)
fake_of(pointwise_conv_input)(_backward)


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _gradients(ctx: Any, d_y: Tensor) -> tuple[Tensor, None]:
    (kernel,) = ctx.saved_tensors
    return torch.ops.pcn.pointwise_conv_input(d_y, kernel), None


def _gradients_of_input(ctx: Any, dd_x: Tensor) -> tuple[Tensor, None]:
    (kernel,) = ctx.saved_tensors
    return torch.ops.pcn.pointwise_conv(dd_x, kernel), None


pointwise_conv.register_autograd(_gradients, setup_context=_save)
pointwise_conv_input.register_autograd(_gradients_of_input, setup_context=_save)


autocast_("pointwise_conv", 0, 1)


@register_flop_formula([torch.ops.pcn.pointwise_conv, torch.ops.pcn.pointwise_conv_input])
def _flops(images: Any, kernel: Any, **keywords: Any) -> int:
    return int(2 * images[0] * prod(images[2:]) * prod(kernel))
