"""Layers as products of two, from the singular value decomposition of their weights, and Frobenius decay for them.

Letters: W (n, m) is a layer's weight with its kernel flattened into m, W = expand @ reduce with expand (n, r) and
reduce (r, m). Spectral initialisation and Frobenius decay are those of Khodak et al., 2021.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Layer = nn.Conv2d | nn.Linear


class Factorised(nn.Sequential):
    """A layer with the kernel and r outputs, then one of 1x1 with all outputs."""

    reduce: nn.Module
    expand: nn.Module

    def __init__(self, layer: Layer, rank: int) -> None:
        factory = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        bias = layer.bias is not None
        if isinstance(layer, nn.Conv2d):
            moved = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
            reduce: nn.Module = nn.Conv2d(layer.in_channels, rank, layer.kernel_size, bias=False, **moved, **factory)
            expand: nn.Module = nn.Conv2d(rank, layer.out_channels, 1, bias=bias, **factory)
        else:
            reduce = nn.Linear(layer.in_features, rank, bias=False, **factory)
            expand = nn.Linear(rank, layer.out_features, bias=bias, **factory)
        super().__init__(OrderedDict(reduce=reduce, expand=expand))
        self.load_(layer)

    @torch.no_grad()
    def load_(self, layer: Layer) -> None:
        """Spectral initialisation: the leading singular triples, their values shared out evenly to both factors."""
        rank = self.reduce.weight.shape[0]
        left, values, right = torch.linalg.svd(layer.weight.flatten(1).double(), full_matrices=False)
        roots = values[:rank].sqrt()
        self.expand.weight.copy_((left[:, :rank] * roots).reshape(self.expand.weight.shape))
        self.reduce.weight.copy_((roots[:, None] * right[:rank]).reshape(self.reduce.weight.shape))
        if layer.bias is not None:
            self.expand.bias.copy_(layer.bias)


def factorise_(model: nn.Module, ranks: dict[str, int]) -> None:
    """Put factorised layers in the place of the named ones."""
    for name, rank in ranks.items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, Factorised(model.get_submodule(name), rank))


def factor_pairs(model: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """The weights (expand, reduce) of every factorised layer."""
    return [(m.expand.weight, m.reduce.weight) for m in model.modules() if isinstance(m, Factorised)]


@torch.no_grad()
def add_frobenius_decay_(pairs: list[tuple[nn.Parameter, nn.Parameter]], strength: float) -> None:
    """Add to the gradients those of strength / 2 times the squared Frobenius norms of the products."""
    for expand, reduce in pairs:
        left, right = expand.flatten(1), reduce.flatten(1)
        for factor, pull in ((expand, left @ (right @ right.T)), (reduce, (left.T @ left) @ right)):
            if factor.grad is not None:
                factor.grad.add_(pull.reshape(factor.shape), alpha=strength)


def use_frobenius_decay_(optimizer: Optimizer, model: nn.Module, strength: float) -> None:
    """Have an optimizer decay the products in place of the factors, which get a group without decay."""
    pairs = factor_pairs(model)
    if not strength:  # nothing to add, which would take two products a layer in every step
        return
    factors = {id(parameter) for pair in pairs for parameter in pair}
    for group in list(optimizer.param_groups):
        own = [p for p in group["params"] if id(p) in factors]
        if own:
            group["params"] = [p for p in group["params"] if id(p) not in factors]
            options = {key: value for key, value in group.items() if key != "params"}
            optimizer.add_param_group({**options, "params": own, "weight_decay": 0.0})

    def decay(*_: object) -> None:
        add_frobenius_decay_(pairs, strength)

    optimizer.register_step_pre_hook(decay)


def all_layers(model: nn.Module) -> list[tuple[str, Layer]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def inner_layers(model: nn.Module) -> list[tuple[str, Layer]]:
    """Every layer but the first and the last, which the methods leave as they are."""
    return all_layers(model)[1:-1]


def singular_values(layer: Layer) -> Tensor:
    return torch.linalg.svdvals(layer.weight.detach().flatten(1).double())
