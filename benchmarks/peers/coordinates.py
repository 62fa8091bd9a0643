"""Other coordinates for layers in training, in place: what the network computes stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pcn.nn import PCModule
from pcn.nn.conv import PCConvNd
from pcn.rewriting import directions
from pcn.rewriting.directions import Directions
from pcn.running.untouched import untouched
from pcn.statistics import eigen


@torch.no_grad()
def whiten_again_(model: nn.Module, optimizer: Optimizer, batches: Iterable[Tensor]) -> None:
    """Bring the coordinates of every layer to the same variance."""
    for layer, covariance in _covariances(model, batches).items():
        _turn_(layer, optimizer, *_whitening(covariance))


@torch.no_grad()
def resize_(model: nn.Module, optimizer: Optimizer, squares: Mapping[str, float]) -> None:
    """Scale the coordinates of every layer so that its weight has the mean square that is given by its name."""
    for name, layer in model.named_modules():
        if isinstance(layer, PCModule):
            factor = (float(layer.weight.square().mean()) / squares[name]) ** 0.5
            same = torch.eye(layer.basis.shape[1], dtype=torch.float64, device=layer.basis.device)
            _turn_(layer, optimizer, same * factor, same / factor)


def _turn_(layer: PCModule, optimizer: Optimizer, turn: Tensor, back: Tensor) -> None:
    """Have z become turnᵀ z; ``back`` is the transposed inverse, by which weights follow. Momenta go along."""
    layer.basis.copy_(layer.basis.to(turn) @ turn)
    layer.weight.copy_(torch.einsum("nr...,rq->nq...", layer.weight.to(back), back))
    momentum = optimizer.state[layer.weight].get("momentum_buffer")
    if momentum is not None:  # of gradients by W~, which become those by W~ back
        momentum.copy_(torch.einsum("nr...,rq->nq...", momentum.to(turn), turn))


def _whitening(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """The way to coordinates without correlation and of the same variance, their total as before, and the way back."""
    variances, vectors = eigen.full(covariance[None])
    found = directions.preconditioned(Directions(vectors, vectors, variances), 1.0)
    return found.along[0], found.back[0]


def _covariances(model: nn.Module, batches: Iterable[Tensor]) -> dict[PCModule, Tensor]:
    """That of every layer's coordinates, with batch norm as in training."""
    layers = [module for module in model.modules() if isinstance(module, PCModule)]
    sums: dict[PCModule, list[Tensor]] = {layer: [] for layer in layers}

    def watch(layer: PCModule, given: tuple[Tensor, ...]) -> None:
        rows = given[0].movedim(1, -1).flatten(0, -2) if isinstance(layer, PCConvNd) else given[0].flatten(0, -2)
        found = (rows.float() - layer.mean) @ layer.basis
        ones = torch.cat([found, found.new_ones(len(found), 1)], 1).double()
        sums[layer].append(ones.T @ ones)

    hooks = [layer.register_forward_pre_hook(watch) for layer in layers]
    try:
        with untouched(model, "batch"):
            for batch in batches:
                model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {layer: _covariance(torch.stack(found).sum(0)) for layer, found in sums.items() if found}


def _covariance(sums: Tensor) -> Tensor:
    """From the sums of products, the last of which are with one."""
    products, total, count = sums[:-1, :-1], sums[:-1, -1], sums[-1, -1]
    return products / count - torch.outer(total, total) / count**2
