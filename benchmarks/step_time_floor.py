"""The least time that a training step of a fused network can take: what it must move, at the speed of a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pcn.fusion import plain
from pcn.fusion.layers import FusedConv2d, FusedLayer
from pcn.fusion.norms import FusedNorm
from pcn.fusion.stems import HandingConv2d
from pcn.nn import PCModule
from pcn.running.untouched import untouched

OPTIMIZER_BYTES = 5 * 4  # a trained fp32 number: read with its gradient and momentum, written with its momentum


def step_bytes(model: nn.Module, batch: Tensor, itemsize: int) -> int:
    """Bytes moved forward and back by batch norms, layers and the optimizer; everything else is free here."""
    moved = 0
    convolutions = [module for module in model.modules() if isinstance(module, FusedConv2d)]
    with_moments = [each.use.norm for each in convolutions if each.gives_moments and each.use.form != "folded"]
    with_moments += [module.use.norm for module in model.modules() if isinstance(module, HandingConv2d)]
    for module, positions, outputs in _seen(model, batch):
        if isinstance(module, FusedNorm):
            moved += norm_elements(module, positions, given=any(module is each for each in with_moments))
        else:
            moved += layer_elements(module, positions, outputs)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return moved * itemsize + trained * OPTIMIZER_BYTES


def norm_elements(norm: FusedNorm, positions: int, *, given: bool) -> int:
    """What a fused batch norm reads and writes, in elements: statistics if not given, forward pass, sums, gradients."""
    chain, width = norm.chain, norm.num_features
    rank = chain.readers[0].rank if chain.readers else 0
    emit = width if chain.emit or not chain.relu else 0
    added = width if chain.added else 0
    coming = rank + emit  # a gradient for each output
    forward = (0 if given else width) + (width + added + rank + emit)
    sums = width + coming + 2 * added  # what shows where ReLU let through, and the gradient of what was added
    gradients = width + (width if chain.added else coming) + width
    return positions * (forward + sums + gradients)


def layer_elements(layer: nn.Module, inputs: tuple[int, ...] | int, outputs: int) -> int:
    """What a convolution or linear layer reads and writes three times: forward, for its input, for its weight."""
    assert isinstance(inputs, tuple)
    positions, width = inputs
    if not isinstance(layer, PCModule):
        return 3 * (positions * width + outputs)
    form = layer.use.form if isinstance(layer, FusedLayer) else "factored"
    read = width if form == "folded" else layer.rank * layer.groups
    extra = positions * 2 * (width + read) if form == "factored" else 0
    return 3 * (positions * read + outputs) + extra


def _seen(model: nn.Module, batch: Tensor) -> list[tuple[nn.Module, Any, int]]:
    """Every batch norm, convolution and linear layer with the sizes that it meets."""
    found: list[tuple[nn.Module, Any, int]] = []

    def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        given = arguments[0]
        if isinstance(module, FusedNorm):
            found.append((module, given.numel() // given.shape[1], 0))
        else:
            linear = not hasattr(module, "kernel_size")
            width = given.shape[-1 if linear else 1]
            found.append((module, (given.numel() // width, width), output.numel()))

    kinds = (FusedNorm, PCModule, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    hooks = [module.register_forward_hook(hook) for module in model.modules() if isinstance(module, kinds)]
    try:
        with plain(), untouched(model), torch.no_grad():
            model(batch)
    finally:
        for each in hooks:
            each.remove()
    return found
