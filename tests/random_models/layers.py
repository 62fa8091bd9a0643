"""Convolutions and linear layers with whatever stands around them: the leaves of random models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from random_models.choices import Choices

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
BATCH_NORMS = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE_NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
MAX_POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE_POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
ADAPTIVE_POOLS = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
ADAPTIVE_MAX_POOLS = {1: nn.AdaptiveMaxPool1d, 2: nn.AdaptiveMaxPool2d, 3: nn.AdaptiveMaxPool3d}


@dataclass(frozen=True)
class Spec:
    """What a block is given: (batch, width) and ``dims`` more dimensions of ``size``."""

    dims: int
    width: int
    size: int

    @property
    def positions(self) -> int:
        return int(self.size**self.dims)

    def widened(self, width: int) -> Spec:
        return replace(self, width=width)


Made = tuple[nn.Module, Spec]


def some_width(c: Choices) -> int:
    return c.pick([4, 6, 8, 5, 12])


def weighted(c: Choices, spec: Spec, width: int | None = None) -> Made:
    """A layer with weights that keeps the size of its input, with or without a norm and an activation around it."""
    width = width or some_width(c)
    layer = linear(c, spec.width, width) if spec.dims == 0 else convolution(c, spec, width)
    out = spec.widened(width)
    before = [*norm(c, spec), *activation(c, spec)] if c.chance(15) else []
    parts = [*before, layer, *norm(c, out), *activation(c, out)]
    return (parts[0] if len(parts) == 1 else nn.Sequential(*parts)), out


def linear(c: Choices, inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs, bias=not c.chance(30))


def convolution(c: Choices, spec: Spec, width: int) -> nn.Module:
    """A convolution that keeps the size, in groups where the widths allow it."""
    kernel = c.pick([1, 3, 3])
    groups = [1, 1, 1, *(g for g in (2, spec.width) if spec.width % g == 0 and width % g == 0)]
    dilation = c.pick([1, 1, 2]) if kernel == 3 and spec.size >= 5 else 1
    padding: int | str = dilation * (kernel - 1) // 2
    return CONVOLUTIONS[spec.dims](
        spec.width,
        width,
        kernel,
        padding="same" if c.chance(10) else padding,
        dilation=dilation,
        groups=c.pick(groups),
        bias=not c.chance(40),
        padding_mode=c.pick(["zeros"] * 5 + ["reflect", "replicate", "circular"]) if spec.size > 2 else "zeros",
    )


def norm(c: Choices, spec: Spec) -> list[nn.Module]:
    kind = c.pick(["none", "batch", "batch", "batch", "bare", "untracked", "instance", "group"])
    if kind in ("none", "instance") and (kind == "none" or spec.dims == 0 or spec.positions < 2):
        return []
    batch_norm = BATCH_NORMS[spec.dims]
    makers: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: batch_norm(spec.width),
        "bare": lambda: batch_norm(spec.width, affine=False),
        "untracked": lambda: batch_norm(spec.width, track_running_stats=False),
        "instance": lambda: INSTANCE_NORMS[spec.dims](spec.width, affine=c.chance(50)),
        "group": lambda: nn.GroupNorm(1, spec.width) if c.chance(30) else batch_norm(spec.width),
    }
    return [makers[kind]()]


def activation(c: Choices, spec: Spec) -> list[nn.Module]:
    made: list[Callable[[], nn.Module]] = [
        nn.ReLU,
        nn.GELU,
        nn.Sigmoid,
        lambda: nn.PReLU(spec.width),
        nn.PReLU,
        nn.LeakyReLU,
        lambda: nn.ReLU(inplace=True),
        nn.SiLU,
        nn.Dropout,
        nn.Hardswish,
    ]
    choice = c.below(len(made) + 2)
    return [] if choice < 2 else [made[choice - 2]()]


def shrinking(c: Choices, spec: Spec) -> Made:
    """A layer that makes the image smaller: strides and pools."""
    if spec.dims == 0 or spec.size < 4:
        return weighted(c, spec)
    half = replace(spec, size=(spec.size - 1) // 2 + 1)
    kind = c.below(5)
    if kind == 0:
        width = some_width(c)
        layer = CONVOLUTIONS[spec.dims](spec.width, width, 3, stride=2, padding=1, bias=not c.chance(40))
        half = half.widened(width)
        return nn.Sequential(layer, *norm(c, half), *activation(c, half)), half
    pools: list[tuple[Any, int]] = [
        (MAX_POOLS[spec.dims](2), spec.size // 2),
        (AVERAGE_POOLS[spec.dims](3, stride=2, padding=1), half.size),
        (ADAPTIVE_POOLS[spec.dims](3), 3),
        (Indexed(ADAPTIVE_MAX_POOLS[spec.dims](2, return_indices=True)), 2),
    ]
    pool, size = pools[kind - 1]
    return pool, replace(spec, size=size)


class Indexed(nn.Module):
    """A pool that returns indices too, which are thrown away."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x)[0]


def randomise_(model: nn.Module) -> None:
    """Give norms and free parameters random values, so that no channel is like another and none is trivial."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and isinstance(module.running_mean, Tensor):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        if layer_like(module):
            continue
        for parameter in module.parameters(recurse=False):
            nn.init.uniform_(parameter, 0.5, 1.5)
            with torch.no_grad():
                parameter.mul_(torch.randn_like(parameter).sign())


def layer_like(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
