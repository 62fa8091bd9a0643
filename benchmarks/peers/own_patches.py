"""Convolutions each of whose outputs is trained along directions of patches of its own.

A rank, and patterns of taps, give all outputs of a layer the same subspace. Here every output has those directions
along which it responds most: as many numbers are trained, and together the outputs read all directions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from pcn.costs.count import count
from pcn.rewriting import directions
from pcn.rewriting.directions import Directions
from pcn.training import Trainer
from peers.factors import inner_layers
from peers.patches import Found, look, patch_covariances, replace_
from peers.switches import Batches, PeerSwitch


class OwnPatchConv2d(nn.Module):
    """A convolution whose outputs are trained along the directions ``chosen`` (o, n) for each of ``patches`` (w, w)."""

    def __init__(self, layer: nn.Conv2d, count: int) -> None:
        super().__init__()
        kernel = layer.weight
        outputs, inputs = kernel.flatten(1).shape
        factory = {"device": kernel.device, "dtype": kernel.dtype}
        self.shape = tuple(kernel.shape)
        self.stride, self.padding = layer.stride, layer.padding
        self.weight = nn.Parameter(torch.zeros(outputs, count, **factory))
        self.register_buffer("patches", torch.zeros(inputs, inputs, **factory))
        self.register_buffer("chosen", torch.zeros(outputs, count, dtype=torch.int64, device=kernel.device))
        # Zeros made in the forward pass might have a row for every sample, for all that a count of operations knows.
        self.register_buffer("none", torch.zeros(outputs, inputs, **factory), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        along = self.none.scatter(1, self.chosen, self.weight)
        return F.conv2d(x, (along @ self.patches).view(self.shape), None, self.stride, self.padding)


class OwnPatchSwitch(PeerSwitch):
    """Trains the same share of every output's coordinates, along principal directions of patches.

    ``plain`` ones are the numbers of a patch as they are, scaled alike: what is left is magnitude pruning.
    """

    def __init__(self, trainer: Trainer, *, plain: bool = False) -> None:
        target = trainer.settings.params
        assert isinstance(target, int)
        super().__init__(trainer, target)
        self.plain = plain

    def cut_(self, batches: Batches) -> dict[str, Any]:
        layers = {name: layer for name, layer in inner_layers(self.model) if isinstance(layer, nn.Conv2d)}
        covariances = patch_covariances(self.model, layers, batches())
        weights = sum(layer.weight.numel() for layer in layers.values())
        share = (self.target - count(self.model).trainable + weights) / weights
        counts = {name: max(1, int(share * layer.weight[0].numel())) for name, layer in layers.items()}
        for name, layer in layers.items():
            found = as_it_is(covariances[name]) if self.plain else look(layer, covariances[name], separable=True)
            put_(self.model, name, found, counts[name], self.optimizer)
        return {"counts": counts}

    def rebuild_(self, what: dict[str, Any]) -> None:
        for name, number in what["counts"].items():
            layer = self.model.get_submodule(name)
            replace_(self.model, name, layer, OwnPatchConv2d(layer, number), self.optimizer)


def as_it_is(covariance: Tensor) -> Found:
    """The directions of a patch's own numbers."""
    variances = covariance.diagonal().clamp_min(0)
    return Found(torch.eye(len(covariance)).to(covariance), variances, variances / variances.sum(), None)


@torch.no_grad()
def put_(model: nn.Module, name: str, found: Found, number: int, optimizer: Optimizer) -> None:
    """Have every output of a layer keep so many coordinates, those of most response; its momentum goes along."""
    layer = model.get_submodule(name)
    vectors = found.vectors[None]
    every = directions.preconditioned(Directions(vectors, vectors, found.variances[None]), 1.0)
    along, back = every.along[0], every.back[0]
    new = OwnPatchConv2d(layer, number)
    coordinates = layer.weight.flatten(1).to(back) @ back
    chosen = (coordinates.abs() * every.variances[0].sqrt()).topk(number, dim=1).indices.sort(dim=1).values
    new.patches.copy_(along.T)
    new.chosen.copy_(chosen)
    new.weight.copy_(coordinates.gather(1, chosen))
    replace_(model, name, layer, new, optimizer)
    momentum = optimizer.state.pop(layer.weight, {}).get("momentum_buffer")
    if momentum is not None:  # of gradients by W, which become those by W along
        moved = (momentum.flatten(1).to(along) @ along).gather(1, chosen)
        optimizer.state[new.weight]["momentum_buffer"] = moved.to(new.weight)
