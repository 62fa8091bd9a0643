"""What the kernels of convolutions compute, in plain PyTorch: the specification, and what runs where no kernel does.

Images x (n, channels, height, width), a weight (filters, channels, kernel_height, kernel_width) of the same dtype, no
bias, the same stride and zero padding both ways. Whatever comes out has its channels last in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pcn.errors import ConfigError
from pcn.kernels.reference import batch_moments
from pcn.kernels.rows import as_rows


class Geometry(NamedTuple):
    """The sizes of a convolution, without the number of images."""

    height: int
    width: int
    channels: int
    filters: int
    kernel_height: int
    kernel_width: int
    stride: int
    padding: int

    @property
    def out_height(self) -> int:
        return (self.height + 2 * self.padding - self.kernel_height) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * self.padding - self.kernel_width) // self.stride + 1

    @property
    def patch(self) -> int:
        """How many numbers one position of the output is made from."""
        return self.kernel_height * self.kernel_width * self.channels


def geometry_of(images: Sequence[int], weight: Sequence[int], stride: int, padding: int) -> Geometry:
    """The sizes of the convolution of images and a weight of these shapes.

    >>> geometry_of((2, 16, 32, 32), (64, 16, 3, 3), 2, 1).out_height
    16
    """
    filters, channels, kernel_height, kernel_width = weight
    geometry = Geometry(images[2], images[3], channels, filters, kernel_height, kernel_width, stride, padding)
    if images[1] != channels:
        raise ConfigError(f"images have {images[1]} channels, the weight {tuple(weight)} takes {channels}")
    if geometry.out_height < 1 or geometry.out_width < 1:
        raise ConfigError(
            f"images of {images[2]} x {images[3]} with padding {padding} are smaller than the kernel "
            f"{kernel_height} x {kernel_width}; give larger images, more padding or a smaller kernel"
        )
    return geometry


def narrow_conv(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the convolution, and the mean and the biased variance of its channels."""
    y = channels_last(F.conv2d(x, weight, stride=stride, padding=padding))
    return y, *batch_moments(as_rows(y))


def narrow_conv_weight(
    x: Tensor, d_y: Tensor, kernel_height: int, kernel_width: int, stride: int, padding: int
) -> Tensor:
    """Return the gradient of the weight."""
    weight = x.new_empty(d_y.shape[1], x.shape[1], kernel_height, kernel_width)
    return channels_last(_backward(d_y, x, weight, stride, padding, (False, True, False))[1])


def narrow_conv_input(d_y: Tensor, weight: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
    """Return the gradient of the images."""
    x = empty_last(d_y, weight.shape[1], height, width)
    return channels_last(_backward(d_y, x, weight, stride, padding, (True, False, False))[0])


def _backward(
    d_y: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    sizes = [stride, stride], [padding, padding], [1, 1], False, [0, 0], 1
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(d_y, x, weight, None, *sizes, wanted)
    return found


def channels_last(images: Tensor) -> Tensor:
    """The same images with their channels last in memory.

    >>> channels_last(torch.ones(2, 3, 4, 5)).stride()
    (60, 1, 15, 3)
    """
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def empty_last(like: Tensor, channels: int, height: int, width: int) -> Tensor:
    """As many images as there are, of other sizes, with their channels last in memory."""
    return like.new_empty(like.shape[0], height, width, channels).permute(0, 3, 1, 2)
