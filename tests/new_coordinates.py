"""The parent as a function of its principal component layers' parameters: gradients there come from autograd alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.func import functional_call

import pcn
from pcn.layers import LAYER_TYPES
from pcn.nn import PCModule

Batch = tuple[Tensor, Tensor]
CLASSES = 3


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, CLASSES)).double()


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 6, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(6 * 3 * 3, CLASSES),
    ).double()


def grouped() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(8, 6, 3, padding=1, groups=2),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, CLASSES),
    ).double()


def transposed() -> nn.Sequential:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(1)
    return nn.Sequential(Conv1D(8, 5), nn.Tanh(), Conv1D(7, 8), nn.Tanh(), Conv1D(CLASSES, 7)).double()


def normalised(bias: bool = False) -> nn.Sequential:
    """Train-mode batch norm follows both convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=bias),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.Conv2d(6, 6, 3, padding=1, bias=bias),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, CLASSES),
    ).double()


MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "dense": dense,
    "convolutional": convolutional,
    "grouped": grouped,
    "transposed": transposed,
    "normalised": normalised,
}
WITHOUT_BIAS = {"normalised": lambda: normalised(bias=True)}


def batch(kind: str, seed: int, size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (5,) if kind in ("dense", "transposed") else (3, 6, 6)
    inputs = torch.randn(size, *shape, generator=generator, dtype=torch.double) + 0.5
    return inputs, torch.randint(CLASSES, (size,), generator=generator)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@cache
def planned(kind: str, order: str | None) -> tuple[nn.Sequential, pcn.Statistics, pcn.Plan]:
    """A model, what was seen of it and a plan; with an order, some channels are dropped and count as it says."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    stats = pcn.analyze(model, [batch(kind, 99, 64)[0]])
    layers = {} if order is None else {"0": pcn.LayerRule(rank=0.5, keep_outputs=4, order=order)}
    config = pcn.PCNConfig(rank=0.6, layers=layers, order=order or "truncate_first", skip_larger=False)
    plan = pcn.make_plan(model, stats, config)
    assert bool(plan.slices) == (order is not None)
    return model, stats, plan


@dataclass
class NewCoordinates:
    """Gradients of a parent's loss with respect to the parameters that its principal component network will have.

    A new weight D stands for the weight W + D U_Sᵀ (in the kept rows and columns) and the bias b - Σ_k D_k U_Sᵀ mu_S.
    """

    kind: str
    plan: pcn.Plan
    small: nn.Module  # the transformed network: its bases and the names of its parameters count, not its weights

    @classmethod
    def of(cls, kind: str, order: str | None) -> NewCoordinates:
        model, stats, plan = planned(kind, order)
        small = copy.deepcopy(model)
        plan.apply_(small, stats, check=False)
        return cls(kind, plan, small)

    def gradients(self, parent: nn.Module, batch: Batch, decay: float = 0.0) -> dict[str, Tensor]:
        """The gradient of the loss, plus half of ``decay`` times the parent's own squared norm, by new name."""
        twin = self._with_biases(parent)
        free = {name: torch.zeros_like(p, requires_grad=True) for name, p in self.small.named_parameters()}
        moved = {name: self._moved(name, p.detach(), free) for name, p in twin.named_parameters()}
        loss = nn.functional.cross_entropy(functional_call(twin, moved, (batch[0],)), batch[1])
        loss = loss + decay / 2 * sum(tensor.square().sum() for tensor in moved.values())
        gradients = torch.autograd.grad(loss, list(free.values()))
        # Fused optimizers take the memory of parameter, gradient and state to be laid out alike.
        return {name: gradient.contiguous() for name, gradient in zip(free, gradients, strict=True)}

    def _with_biases(self, parent: nn.Module) -> nn.Module:
        """A copy in which every layer has a bias, zero where it is new."""
        twin = WITHOUT_BIAS.get(self.kind, MODELS[self.kind])()
        missing, _ = twin.load_state_dict(parent.state_dict(), strict=False)
        for name in missing:
            nn.init.zeros_(twin.get_parameter(name))
        return twin.train(parent.training)

    def _moved(self, name: str, value: Tensor, free: dict[str, Tensor]) -> Tensor:
        owner, _, attribute = name.rpartition(".")
        layer = self.plan.layers.get(owner)
        if layer is None or layer.rank is None:
            return value + _spread(free[name], value, *(self.plan.kept(name, dim) for dim in range(value.dim())))
        small = self.small.get_submodule(owner)
        assert isinstance(small, PCModule)
        kind = LAYER_TYPES[layer.kind]
        rows, columns = (self.plan.kept(f"{owner}.weight", dim) for dim in (kind.out_dim, kind.in_dim))
        back = _multiplied_out(free[f"{owner}.weight"], small.basis, layer.groups)  # D U_Sᵀ, (rows, inputs / g, ...)
        if attribute == "bias":
            return value + _spread(free[name] - _response(back, small.mean, layer.groups), value, rows)
        if kind.out_dim == 1:
            return value + _spread(back, value.transpose(0, 1), rows, columns).transpose(0, 1)
        return value + _spread(back, value, rows, columns)


def _spread(change: Tensor, like: Tensor, *kept: tuple[int, ...] | None) -> Tensor:
    """Put entries where they stood in a whole tensor, zeros elsewhere; ``kept`` lists their places by dimension."""
    for dim, places in enumerate(kept):
        if places is not None:
            shape = [like.shape[d] if d == dim else size for d, size in enumerate(change.shape)]
            change = change.new_zeros(shape).index_copy(dim, torch.tensor(places), change)
    return change


def _multiplied_out(weight: Tensor, basis: Tensor, groups: int) -> Tensor:
    parts = zip(weight.chunk(groups), basis.chunk(groups), strict=True)
    return torch.cat([torch.einsum("nr...,mr->nm...", rows, columns) for rows, columns in parts])


def _response(weight: Tensor, mean: Tensor, groups: int) -> Tensor:
    """What a layer makes of a vector that stands at every position."""
    summed = weight.reshape(*weight.shape[:2], -1).sum(2)
    return torch.cat([rows @ part for rows, part in zip(summed.chunk(groups), mean.chunk(groups), strict=True)])
