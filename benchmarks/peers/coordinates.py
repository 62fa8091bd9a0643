"""Other coordinates for layers in training, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pcn.maths.patterns import contributions
from pcn.nn import PCModule
from pcn.nn.conv import PCConvNd
from pcn.rewriting import directions
from pcn.rewriting.directions import Directions
from pcn.running.untouched import untouched
from pcn.statistics import eigen

SHORTEST = 1e-6  # of weights along a direction, by which it is scaled: there may be none


@torch.no_grad()
def whiten_again_(model: nn.Module, optimizer: Optimizer, batches: Iterable[Tensor]) -> None:
    """Bring the coordinates of every layer to the same variance; what the network computes stays."""
    for layer, covariance in covariances(model, batches).items():
        _turn_(layer, optimizer, *_whitening(of_coordinates(layer, covariance)))


@torch.no_grad()
def resize_(model: nn.Module, optimizer: Optimizer, squares: Mapping[str, float]) -> None:
    """Scale the coordinates of every layer so that its weight has the mean square that is given by its name.

    What the network computes stays.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, PCModule):
            factor = (float(layer.weight.square().mean()) / squares[name]) ** 0.5
            same = torch.eye(layer.basis.shape[1], dtype=torch.float64, device=layer.basis.device)
            _turn_(layer, optimizer, same * factor, same / factor)


@torch.no_grad()
def renew_(model: nn.Module, optimizer: Optimizer, batches: Iterable[Tensor], share: float) -> None:
    """Have every layer give up the share of its coordinates that its output hears least of, for others.

    It reads the directions of most variance outside of those that stay in their place, at first with weights of zero.
    """
    for layer, covariance in covariances(model, batches).items():
        basis, variances = layer.basis.to(covariance), of_coordinates(layer, covariance).diagonal()
        heard = variances * layer.weight.transpose(0, 1).flatten(1).to(variances).square().sum(1)
        given_up, stay = heard.argsort().tensor_split([int(share * len(heard))])
        if len(given_up) and len(stay):
            around = torch.linalg.qr(basis[:, stay])[0]
            outside = torch.eye(len(basis)).to(basis) - around @ around.T
            values, vectors = eigen.full((outside @ covariance @ outside)[None])
            new, varies = vectors[0, :, : len(given_up)], values[0, : len(given_up)]
            usual = variances[stay].mean()
            layer.basis[:, given_up] = (new * (usual / (varies + directions.FLOOR * usual)).sqrt()).to(layer.basis)
            momentum = optimizer.state[layer.weight].get("momentum_buffer")
            for tensor in (layer.weight, momentum):
                if tensor is not None:
                    tensor[:, given_up] = 0


def decay_dense_(model: nn.Module, optimizer: Optimizer) -> None:
    """Have an optimizer decay the weights that layers stand for, W~ Uᵀ with all taps, in place of W~ itself.

    They are equally large where directions and patterns have length one. Along one of length s, as preconditioning
    makes them, the gradient of ‖W~ Uᵀ‖² is s² times that of ‖W~‖². What is frozen of it is worked out at the first
    step: a run that goes on has its bases by then. Where U is trained too, this is Frobenius decay of both.
    """
    layers = {module.weight: module for module in model.modules() if isinstance(module, PCModule)}
    products: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def pull(*_: object) -> None:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight in layers and weight.grad is not None:
                    layer = layers[weight]
                    if weight not in products or layer.train_basis:
                        products[weight] = _inner_products(layer)
                    dense = torch.einsum("nr...,rq->nq...", weight, products[weight])
                    weight.grad.add_(dense - weight, alpha=group["weight_decay"])
                    if layer.train_basis and layer.basis.grad is not None:
                        rows = weight.transpose(0, 1).flatten(1)
                        layer.basis.grad.add_(layer.basis @ (rows @ rows.T) - layer.basis, alpha=group["weight_decay"])

    optimizer.register_step_pre_hook(pull)


@torch.no_grad()
def balance_(model: nn.Module, optimizer: Optimizer) -> None:
    """Have every direction of a trained basis be as long as the weights along it, so that both learn as fast.

    What the network computes stays.
    """
    for layer in model.modules():
        if isinstance(layer, PCModule) and layer.train_basis:
            lengths = layer.weight.transpose(0, 1).flatten(1).double().norm(dim=1)
            scale = (lengths / layer.basis.double().norm(dim=0)).clamp_min(SHORTEST).sqrt()
            _turn_(layer, optimizer, scale.diag(), (1 / scale).diag())


def _inner_products(layer: PCModule) -> Tensor:
    """Those of what each coordinate adds to a layer's weight: directions, or patterns along them."""
    patterns = layer.tap_patterns
    each = layer.basis.mT if patterns is None else contributions(patterns, layer.basis.mT)
    return each.flatten(1) @ each.flatten(1).mT


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


def of_coordinates(layer: PCModule, covariance: Tensor) -> Tensor:
    """The covariance of a layer's coordinates, from that of its input."""
    basis = layer.basis.to(covariance)
    return basis.T @ covariance @ basis


def covariances(model: nn.Module, batches: Iterable[Tensor]) -> dict[PCModule, Tensor]:
    """That of every layer's input, with batch norm as in training."""
    layers = [module for module in model.modules() if isinstance(module, PCModule)]
    sums: dict[PCModule, list[Tensor]] = {layer: [] for layer in layers}

    def watch(layer: PCModule, given: tuple[Tensor, ...]) -> None:
        rows = given[0].movedim(1, -1).flatten(0, -2) if isinstance(layer, PCConvNd) else given[0].flatten(0, -2)
        rows = rows.float() - layer.mean
        ones = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        sums[layer].append((ones.T @ ones).double())

    run_watched(model, batches, dict.fromkeys(layers, watch))
    return {layer: _covariance(torch.stack(found).sum(0)) for layer, found in sums.items() if found}


def run_watched(model: nn.Module, batches: Iterable[Tensor], hooks: Mapping[nn.Module, Callable[..., None]]) -> None:
    """Run the model on batches with hooks before some of its modules, batch norm as in training."""
    handles = [module.register_forward_pre_hook(hook) for module, hook in hooks.items()]
    try:
        with untouched(model, "batch"):
            for batch in batches:
                model(batch)
    finally:
        for handle in handles:
            handle.remove()


def _covariance(sums: Tensor) -> Tensor:
    """From the sums of products, the last of which are with one."""
    products, total, count = sums[:-1, :-1], sums[:-1, -1], sums[-1, -1]
    return products / count - torch.outer(total, total) / count**2
