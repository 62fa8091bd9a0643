"""Convolutions that are trained along principal directions of whole patches: of channels and kernel positions at once.

A pixel's neighbours look much like it, so patches live in smaller subspaces than their channels alone say. A kernel is
W = coordinates @ patches, multiplied out at every step: as many operations as the parent's, and fewer numbers trained.

Letters: a patch has w = m k² numbers, of m channels at k² positions; C is the covariance of patches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from pcn.costs.count import count
from pcn.rewriting import directions
from pcn.rewriting.directions import Directions
from pcn.statistics import eigen
from pcn.training import Trainer
from peers.coordinates import run_watched
from peers.factors import inner_layers
from peers.switches import Batches, PeerSwitch


class PatchConv2d(nn.Module):
    """A convolution whose kernel lies in what ``patches`` (n, w) span; only its coordinates (o, n) are trained."""

    def __init__(self, layer: nn.Conv2d, rank: int) -> None:
        super().__init__()
        kernel = layer.weight
        factory = {"device": kernel.device, "dtype": kernel.dtype}
        self.shape = tuple(kernel.shape)
        self.stride, self.padding = layer.stride, layer.padding
        self.weight = nn.Parameter(torch.zeros(kernel.shape[0], rank, **factory))
        self.register_buffer("patches", torch.zeros(rank, kernel[0].numel(), **factory))

    def forward(self, x: Tensor) -> Tensor:
        kernel = (self.weight @ self.patches).view(self.shape)
        return F.conv2d(x, kernel, None, self.stride, self.padding)


@dataclass(frozen=True)
class Found:
    """The directions (w, w) of a layer's patches, their variances, and what each is worth: the share of its response.

    ``channel`` numbers the direction among channels that each belongs to, where they are separable.
    """

    vectors: Tensor
    variances: Tensor
    worth: Tensor
    channel: Tensor | None


class PatchSwitch(PeerSwitch):
    """Trains every inner convolution along the patches' directions of most worth for their price.

    ``separable`` directions are a principal direction of channels times one of its kernel positions; with
    ``positions`` every direction of channels that is read has so many of these. Every layer gets the ``floor``, a share
    of its directions; ``even`` gives all the same share.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        separable: bool = False,
        positions: int | None = None,
        floor: float = 0.0625,
        even: bool = False,
    ) -> None:
        target = trainer.settings.params
        assert isinstance(target, int)
        super().__init__(trainer, target)
        self.separable, self.floor, self.even = separable or positions is not None, floor, even
        self.positions = positions

    def cut_(self, batches: Batches) -> dict[str, Any]:
        layers = {name: layer for name, layer in inner_layers(self.model) if isinstance(layer, nn.Conv2d)}
        found = {
            name: look(layers[name], covariance, separable=self.separable)
            for name, covariance in patch_covariances(self.model, layers, batches()).items()
        }
        room = self.target - count(self.model).trainable + sum(each.weight.numel() for each in layers.values())
        prices = {name: layer.weight.shape[0] for name, layer in layers.items()}
        together = {name: _together(each, self.positions) for name, each in found.items()}
        taken = choose(
            {name: found[name].worth[each].sum(1) for name, each in together.items()},
            {name: prices[name] * each.shape[1] for name, each in together.items()},
            room,
            self.floor,
            even=self.even,
        )
        chosen = {name: together[name][which].flatten() for name, which in taken.items()}
        for name, which in chosen.items():
            put_(self.model, name, found[name], which, self.optimizer)
        ranks = {name: len(which) for name, which in chosen.items()}
        told = {name: _told(found[name], which) for name, which in chosen.items()}
        print(f"directions of patches: {told}", flush=True)
        return {"ranks": ranks, "told": told}

    def rebuild_(self, what: dict[str, Any]) -> None:
        for name, rank in what["ranks"].items():
            layer = self.model.get_submodule(name)
            replace_(self.model, name, layer, PatchConv2d(layer, rank), self.optimizer)


def _together(found: Found, positions: int | None) -> Tensor:
    """The directions that are taken together or not at all, (number of those, as many as each has)."""
    every = torch.arange(len(found.worth), device=found.worth.device)
    if positions is None or found.channel is None:
        return every[:, None]
    of_channel = every.view(int(found.channel[-1]) + 1, -1)
    best = found.worth[of_channel].argsort(dim=1, descending=True, stable=True)[:, :positions]
    return of_channel.gather(1, best)


def _told(found: Found, which: Tensor) -> dict[str, float]:
    """What was taken of a layer: directions, their share of the variance and of the response, and channels."""
    said = {
        "directions": len(which),
        "of": len(found.worth),
        "variance": round(float(found.variances[which].sum() / found.variances.sum()), 4),
        "worth": round(float(found.worth[which].sum()), 4),
    }
    return said if found.channel is None else {**said, "channels": len(found.channel[which].unique())}


@torch.no_grad()
def patch_covariances(model: nn.Module, layers: dict[str, nn.Conv2d], batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """The covariance of the patches that every layer reads, batch norm as in training."""
    sums: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        def hook(layer: nn.Conv2d, given: tuple[Tensor, ...]) -> None:
            rows = F.unfold(given[0].float(), layer.kernel_size, padding=layer.padding, stride=layer.stride)
            rows = rows.movedim(1, -1).flatten(0, 1)
            ones = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
            product = (ones.T @ ones).double()
            sums[name] = product if name not in sums else sums[name] + product

        return hook

    run_watched(model, batches, {layer: watch(name) for name, layer in layers.items()})
    counted = {name: (each[:-1, :-1], each[:-1, -1], each[-1, -1]) for name, each in sums.items()}
    return {name: both / n - torch.outer(total, total) / n**2 for name, (both, total, n) in counted.items()}


@torch.no_grad()
def look(layer: nn.Conv2d, covariance: Tensor, *, separable: bool) -> Found:
    """Find the directions of a layer's patches."""
    weight = layer.weight.flatten(1).to(covariance)
    channel = None
    if separable:
        vectors, channel = separable_directions(covariance, layer.weight.shape[1])
        variances = torch.einsum("wr,wv,vr->r", vectors, covariance, vectors)
    else:
        values, found = eigen.full(covariance[None])
        variances, vectors = values[0], found[0]
    variances = variances.clamp_min(0)
    responses = variances * (weight @ vectors).square().sum(0)
    return Found(vectors, variances, responses / responses.sum().clamp_min(1e-30), channel)


def separable_directions(covariance: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Return directions (w, w), each a principal direction of the channels times one of its kernel positions.

    Beside them the number of the channels' direction.
    """
    positions = len(covariance) // channels
    blocks = covariance.view(channels, positions, channels, positions)
    among = eigen.full(torch.einsum("mknk->mn", blocks)[None])[1][0]
    within = eigen.full(torch.einsum("mj,mknl,nj->jkl", among, blocks, among))[1]
    vectors = torch.einsum("mj,jkp->mkjp", among, within).reshape(len(covariance), -1)
    return vectors, torch.arange(channels, device=covariance.device).repeat_interleave(positions)


def choose(
    worth: dict[str, Tensor], prices: dict[str, int], room: int, floor: float, *, even: bool
) -> dict[str, Tensor]:
    """Take directions of most worth for their price, in every layer at least a share ``floor``, while there is room."""
    names = list(worth)
    ranked = {name: each.argsort(descending=True, stable=True) for name, each in worth.items()}
    if even:
        share = room / sum(prices[name] * len(worth[name]) for name in names)
        return {name: ranked[name][: int(share * len(worth[name]))] for name in names}
    least = {name: max(1, int(floor * len(worth[name]))) for name in names}
    room -= sum(least[name] * prices[name] for name in names)
    rates = torch.cat([(worth[name][ranked[name][least[name] :]] / prices[name]).cpu() for name in names])
    owner = torch.cat([torch.full((len(worth[name]) - least[name],), i) for i, name in enumerate(names)])
    order = rates.argsort(descending=True, stable=True)
    costs = torch.tensor([prices[name] for name in names])[owner[order]]
    taken = owner[order][costs.cumsum(0) <= room]
    more = torch.bincount(taken, minlength=len(names)).tolist()
    return {name: ranked[name][: least[name] + extra] for name, extra in zip(names, more, strict=True)}


@torch.no_grad()
def put_(model: nn.Module, name: str, found: Found, which: Tensor, optimizer: Optimizer) -> None:
    """Put a layer along some of its directions in its place, in coordinates of the same variance; its momentum too."""
    layer = model.get_submodule(name)
    vectors = found.vectors[:, which]
    kept = directions.preconditioned(Directions(vectors[None], vectors[None], found.variances[None, which]), 1.0)
    along, back = kept.along[0], kept.back[0]
    new = PatchConv2d(layer, len(which))
    new.patches.copy_(along.T)
    new.weight.copy_(layer.weight.flatten(1).to(back) @ back)
    replace_(model, name, layer, new, optimizer)
    momentum = optimizer.state.pop(layer.weight, {}).get("momentum_buffer")
    if momentum is not None:  # of gradients by W, which become those by W along
        optimizer.state[new.weight]["momentum_buffer"] = (momentum.flatten(1).to(along) @ along).to(new.weight)


def replace_(model: nn.Module, name: str, layer: nn.Module, new: nn.Module, optimizer: Optimizer) -> None:
    """Put a layer in the place of another, in the model and in its optimizer."""
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, new)
    for group in optimizer.param_groups:
        group["params"] = [new.weight if each is layer.weight else each for each in group["params"]]
