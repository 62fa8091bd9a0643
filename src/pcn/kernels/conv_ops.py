"""Convolutions of few channels as operators that autograd, torch.compile, autocast and FLOP counting understand.

:mod:`pcn.kernels.conv_reference` says what each computes. On a GPU each is run by a kernel of ours or by PyTorch's own,
whichever was timed faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.utils.flop_counter import register_flop_formula

from pcn.kernels import conv_reference as reference
from pcn.kernels.conv_reference import Geometry, channels_last, empty_last, geometry_of
from pcn.kernels.dispatch import uses_kernel
from pcn.kernels.inductor import fake_of
from pcn.kernels.launch import CHOICES, STOCK, Launch
from pcn.kernels.ops import autocast_
from pcn.kernels.reference import wide_dtype
from pcn.kernels.rows import as_rows

NARROW_CONV = "(Tensor x, Tensor weight, int stride, int padding) -> (Tensor y, Tensor mean, Tensor variance)"


@custom_op("pcn::narrow_conv", mutates_args=(), schema=NARROW_CONV)
def narrow_conv(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the convolution, and the mean and the biased variance of its channels; no gradient flows through these.

    >>> y, mean, variance = narrow_conv(torch.ones(2, 3, 4, 4), torch.ones(5, 3, 3, 3), 1, 0)
    >>> y.shape, mean
    (torch.Size([2, 5, 2, 2]), tensor([27., 27., 27., 27., 27.]))
    """
    weight = weight.to(x.dtype)
    if not uses_kernel(x):
        return reference.narrow_conv(x, weight, stride, padding)
    from pcn.kernels.conv_kernel import convolve
    from pcn.kernels.conv_launches import forward_launches
    from pcn.kernels.moments_kernel import moments

    geometry = geometry_of(x.shape, weight.shape, stride, padding)
    x, weight = channels_last(x), channels_last(weight)

    def run(launch: Launch) -> tuple[Tensor, Tensor, Tensor]:
        if launch == STOCK:
            y = channels_last(torch.conv2d(x, weight, stride=stride, padding=padding))
            return y, *moments(as_rows(y))[1:]
        y, mean, variance = convolve(_last(x), _last(weight), geometry, launch, moments=True, reversed=False)
        return y.permute(0, 3, 1, 2), mean, variance

    return CHOICES.run(_key("conv", geometry, x), _rows(geometry, x), forward_launches(geometry, x), x.device, run)


NARROW_CONV_WEIGHT = (
    "(Tensor x, Tensor d_y, int kernel_height, int kernel_width, int stride, int padding) -> Tensor d_weight"
)


@custom_op("pcn::narrow_conv_weight", mutates_args=(), schema=NARROW_CONV_WEIGHT)
def narrow_conv_weight(
    x: Tensor, d_y: Tensor, kernel_height: int, kernel_width: int, stride: int, padding: int
) -> Tensor:
    """Return the gradient of the weight of :func:`narrow_conv`, in the images' dtype."""
    given = kernel_height, kernel_width, stride, padding
    if not uses_kernel(x):
        return reference.narrow_conv_weight(x, d_y, *given)
    from pcn.kernels.conv_launches import weight_launches
    from pcn.kernels.conv_weight_kernel import weight_gradient

    x, d_y = channels_last(x), channels_last(d_y)
    geometry = geometry_of(x.shape, (d_y.shape[1], x.shape[1], kernel_height, kernel_width), stride, padding)

    def run(launch: Launch) -> Tensor:
        if launch == STOCK:
            return reference.narrow_conv_weight(x, d_y, *given)
        return weight_gradient(_last(x), _last(d_y), geometry, launch).permute(0, 3, 1, 2)

    return CHOICES.run(
        _key("conv_weight", geometry, x), _rows(geometry, x), weight_launches(geometry, x), x.device, run
    )


NARROW_CONV_INPUT = "(Tensor d_y, Tensor weight, int height, int width, int stride, int padding) -> Tensor d_x"


@custom_op("pcn::narrow_conv_input", mutates_args=(), schema=NARROW_CONV_INPUT)
def narrow_conv_input(d_y: Tensor, weight: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
    """Return the gradient of the images of :func:`narrow_conv`, which have the given height and width."""
    weight = weight.to(d_y.dtype)
    given = height, width, stride, padding
    if not uses_kernel(d_y):
        return reference.narrow_conv_input(d_y, weight, *given)
    from pcn.kernels.conv_kernel import convolve
    from pcn.kernels.conv_launches import backwards, input_launches
    from pcn.kernels.conv_shift_kernel import convolve_shifted

    d_y, weight = channels_last(d_y), channels_last(weight)
    geometry = geometry_of((len(d_y), weight.shape[1], height, width), weight.shape, stride, padding)
    back = backwards(geometry)

    def run(launch: Launch) -> Tensor:
        if launch == STOCK or back is None:
            return reference.narrow_conv_input(d_y, weight, *given)
        if launch.shifted:
            return convolve_shifted(_last(d_y), _last(weight), back, launch).permute(0, 3, 1, 2)
        d_x, *_ = convolve(_last(d_y), _last(weight), back, launch, moments=False, reversed=True)
        return d_x.permute(0, 3, 1, 2)

    return CHOICES.run(
        _key("conv_input", geometry, d_y), _rows(geometry, d_y), input_launches(geometry, d_y), d_y.device, run
    )


def _last(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1)


def _key(name: str, geometry: Geometry, x: Tensor) -> str:
    from pcn.kernels.tiles import product_key

    return f"{name} {' '.join(map(str, geometry))} {product_key(x)}"


def _rows(geometry: Geometry, images: Tensor) -> int:
    """How many positions come out."""
    return len(images) * geometry.out_height * geometry.out_width


@fake_of(narrow_conv)
def _(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    geometry = geometry_of(x.shape, weight.shape, stride, padding)
    y = empty_last(x, geometry.filters, geometry.out_height, geometry.out_width)
    mean, variance = (x.new_empty(geometry.filters, dtype=wide_dtype(x)) for _ in range(2))
    return y, mean, variance


@fake_of(narrow_conv_weight)
def _(x: Tensor, d_y: Tensor, kernel_height: int, kernel_width: int, stride: int, padding: int) -> Tensor:
    return x.new_empty(d_y.shape[1], kernel_height, kernel_width, x.shape[1]).permute(0, 3, 1, 2)


@fake_of(narrow_conv_input)
def _(d_y: Tensor, weight: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
    return empty_last(d_y, weight.shape[1], height, width)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_y: Tensor | None, *_: None) -> Any:
    x, weight = ctx.saved_tensors
    d_x = d_weight = None
    if d_y is not None and ctx.needs_input_grad[0]:
        d_x = torch.ops.pcn.narrow_conv_input(d_y, weight, *x.shape[2:], ctx.stride, ctx.padding)
    if d_y is not None and ctx.needs_input_grad[1]:
        d_weight = torch.ops.pcn.narrow_conv_weight(x, d_y, *weight.shape[2:], ctx.stride, ctx.padding)
    return d_x, None if d_weight is None else d_weight.to(weight.dtype), None, None


narrow_conv.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.pcn.narrow_conv)
def _flops(x: Any, weight: Any, stride: int, padding: int, **keywords: Any) -> int:
    geometry = geometry_of(x, weight, stride, padding)
    return int(2 * x[0] * geometry.out_height * geometry.out_width * geometry.patch * geometry.filters)


@register_flop_formula(torch.ops.pcn.narrow_conv_weight)
def _weight_flops(x: Any, d_y: Any, kernel_height: int, kernel_width: int, *rest: Any, **keywords: Any) -> int:
    return int(2 * d_y[0] * d_y[1] * d_y[2] * d_y[3] * x[1] * kernel_height * kernel_width)


@register_flop_formula(torch.ops.pcn.narrow_conv_input)
def _input_flops(d_y: Any, weight: Any, *rest: Any, **keywords: Any) -> int:
    return int(2 * d_y[0] * d_y[2] * d_y[3] * weight[0] * weight[1] * weight[2] * weight[3])


autocast_("narrow_conv", 0, 1)
