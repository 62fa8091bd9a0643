"""Torch-Pruning in the middle of training, by the quick start of its documentation, to a given size.

Magnitude importance over groups of coupled channels, the same share of channels from every layer, those that stay in
eights where they can, the classifier left alone; the share is found by bisection. The optimizer is made anew, as
pruning leaves the old one with stale parameters.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from pcn.costs.count import count
from pcn.errors import ConfigError
from pcn.plans.skeleton import sync_sizes_
from peers.switches import Batches, PeerSwitch

HALVINGS = 10  # of the share: a thousandth
ROUND_TO = 8  # channels, as in the quick start: widths that GPUs are fast with
WITHIN = 0.02  # of the target, which every method meets


class TorchPruning(PeerSwitch):
    """Prunes channels after an epoch until the network trains as many parameters as the others of its size."""

    def cut_(self, batches: Batches) -> dict[str, Any]:
        example = next(iter(batches()))[:2]
        prune_(self.model, example, *pruning_for(self.model, example, self.target))
        renew_(self.model)
        return {"shapes": {name: list(tensor.shape) for name, tensor in self.model.state_dict().items()}}

    def rebuild_(self, what: dict[str, Any]) -> None:
        resize_(self.model, what["shapes"])


def prune_(model: nn.Module, example: Tensor, share: float, round_to: int | None) -> None:
    """Take this share of every layer's channels away; with ``round_to`` so that multiples of it are left."""
    pruning = _torch_pruning()
    training = model.training
    *_, classifier = (module for module in model.modules() if isinstance(module, nn.Linear))
    pruner = pruning.pruner.BasePruner(
        model,
        example,
        importance=pruning.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=share,
        ignored_layers=[classifier],
        round_to=round_to,
    )
    pruner.step()
    model.train(training)
    model.zero_grad()


def renew_(model: nn.Module) -> None:
    """Put new parameters in the place of all, which the optimizer is made for after this.

    The pruner's own backward graph lives on in cycles, and with it what adds up gradients of parameters that it left
    alone, on the default stream: a CUDA graph of a step, which is recorded on another, may not use that.
    """
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))


def pruning_for(model: nn.Module, example: Tensor, target: int) -> tuple[float, int | None]:
    """The share of channels to prune, and what to round to: channels in eights where the size is met so."""
    share, trainable = nearest(model, example, target, ROUND_TO)
    if abs(trainable - target) <= WITHIN * target:
        return share, ROUND_TO
    # Conv4's narrow layers: eight channels more or less are 4% of its size.
    return nearest(model, example, target, None)[0], None


def nearest(model: nn.Module, example: Tensor, target: int, round_to: int | None) -> tuple[float, int]:
    """The share of channels to prune that brings a model nearest to the target, and what it trains then."""
    low, high, tried = 0.0, 1.0, {0.0: count(model).trainable}
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        trial = copy.deepcopy(model)
        prune_(trial, example, middle, round_to)
        tried[middle] = count(trial).trainable
        low, high = (middle, high) if tried[middle] > target else (low, middle)
    return min(tried.items(), key=lambda each: abs(each[1] - target))


@torch.no_grad()
def resize_(model: nn.Module, shapes: dict[str, list[int]]) -> None:
    """Give every tensor of a model another shape, with values to be loaded."""
    for name, shape in shapes.items():
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        old = getattr(module, attribute)
        new = old.new_zeros(shape)
        setattr(module, attribute, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)
    for module in model.modules():
        sync_sizes_(module)


def _torch_pruning() -> Any:
    try:
        import torch_pruning
    except ImportError as error:
        raise ConfigError("the method 'torch-pruning' needs that package: pip install torch-pruning") from error
    return torch_pruning
