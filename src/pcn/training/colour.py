"""Random changes of colour: the pixels of an image go through an affine map, x -> M x + o, in units of a byte."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOWEST, HIGHEST = 0.6, 1.4  # of the coefficients of brightness, saturation and hue
LIGHTING = 0.1  # standard deviation along each principal component of ImageNet's colours

LUMA = torch.tensor([0.299, 0.587, 0.114])
TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])  # brightness, two hues
# AlexNet's: standard deviations and directions, the latter in columns
COLOUR_DEVIATIONS = torch.tensor([55.46, 4.794, 1.148])
COLOUR_DIRECTIONS = torch.tensor(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]],
)


def draw_colour_maps(count: int, generator: torch.Generator) -> Tensor:
    """Draw a map for each of ``count`` images, (count, 3, 4): the matrix, and the offset as its last column."""
    brightness, saturation, hue = torch.empty(3, count).uniform_(LOWEST, HIGHEST, generator=generator)
    along = torch.empty(count, 3).normal_(0, LIGHTING, generator=generator)
    matrices = turned(hue) @ saturated(saturation) * brightness[:, None, None]
    offsets = (along * COLOUR_DEVIATIONS) @ COLOUR_DIRECTIONS.T
    return torch.cat([matrices, offsets[:, :, None]], 2)


def saturated(coefficients: Tensor) -> Tensor:
    """The maps that multiply each pixel's distance from grey: 0 leaves grey, 1 changes nothing."""
    weights = coefficients[:, None, None]
    return weights * torch.eye(3) + (1 - weights) * LUMA.expand(3, 3)


def turned(coefficients: Tensor) -> Tensor:
    """The maps that turn each pixel's hue by half a turn times (coefficient - 1), at the same brightness."""
    angle = (coefficients - 1) * math.pi
    rotation = torch.eye(3).repeat(len(angle), 1, 1)
    rotation[:, 1, 1] = rotation[:, 2, 2] = angle.cos()
    rotation[:, 2, 1] = angle.sin()
    rotation[:, 1, 2] = -angle.sin()
    from_yiq: Tensor = torch.linalg.inv(TO_YIQ)
    return from_yiq @ rotation @ TO_YIQ


def coloured(pixels: Tensor, maps: Tensor) -> Tensor:
    """Send the pixels of images (N, H, W, 3) through their maps (N, 3, 4)."""
    rows = pixels.flatten(1, 2).to(maps.dtype)
    return torch.baddbmm(maps[:, None, :, 3], rows, maps[:, :, :3].mT).view(pixels.shape)
