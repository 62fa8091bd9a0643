"""Worth by the loss: what the first-order Taylor term says that a sample's loss moves when a direction is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pcn.errors import StatisticsError
from pcn.example import Example, Forward, device_of
from pcn.layers import layer_type
from pcn.planner.inputs import as_vectors, changed_inputs
from pcn.planner.outputs import logits_of
from pcn.planner.values import Values, added_up, directions_of, forward_of
from pcn.statistics import Statistics
from pcn.untouched import untouched

Loss = Callable[[nn.Module, Any], Tensor]
SAMPLES = 64


def predicted_loss(model: nn.Module, batch: Any, forward: Forward | None = None) -> Tensor:
    """A classifier's mean loss on labels drawn from its own predictions, which makes the worth its true Fisher's."""
    logits = logits_of(Example.of(batch, forward, device_of(model)).call(model), "loss")
    generator = torch.Generator().manual_seed(0)
    chances = logits.detach().double().softmax(-1).flatten(0, -2).cpu()
    labels = torch.multinomial(chances, 1, generator=generator).flatten().to(logits.device)
    return F.cross_entropy(logits.flatten(0, -2), labels)


@dataclass(frozen=True)
class Taylor:
    """Direction j is worth E[(Σ_positions z_j ∂L/∂z_j)²] over samples, from one backward pass over the batches.

    ``loss(model, batch)`` is the mean over a batch; by default a classifier's on labels that it predicts itself.
    """

    loss: Loss | None = None
    needs_batches: ClassVar[bool] = True

    def __call__(self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]) -> Values:
        sums = {name: _Sum(model, stats, name) for name in layers}
        loss = self.loss or partial(predicted_loss, forward=forward_of(stats))
        samples = 0
        with untouched(model, eval_mode=True), torch.enable_grad():
            for batch in batches:
                samples += _add(partial(loss, model, batch), model, sums)
        if not samples:
            raise StatisticsError("there was no batch to take gradients on: give batches=, a list or a function")
        return {name: added_up(each.total / samples, each.vectors.shape[1]) for name, each in sums.items()}


def _add(loss: Callable[[], Tensor], model: nn.Module, sums: dict[str, _Sum]) -> int:
    """Add the terms of one batch; returns how many samples it has."""
    read: list[tuple[str, Tensor]] = []

    def watch(name: str) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
            read.append((name, x))
            return x

        return change

    with changed_inputs(model, {name: watch(name) for name in sums}):
        value = loss()
    gradients = torch.autograd.grad(value, [x for _, x in read], allow_unused=True)
    size = max((len(x) for _, x in read), default=0)
    for (name, x), gradient in zip(read, gradients, strict=True):
        if gradient is not None:
            sums[name].add(x.detach(), gradient * size)  # the loss is a mean: each sample has 1 / size of it
    return size


class _Sum:
    """The squared Taylor terms of one layer's directions, added up."""

    def __init__(self, model: nn.Module, stats: Statistics, layer: str) -> None:
        kind = layer_type(model.get_submodule(layer))
        assert kind is not None
        self.spatial = kind.spatial
        self.mean, _, self.vectors = directions_of(stats, layer)
        self.total = self.vectors.new_zeros(self.vectors.shape[-1])

    def add(self, x: Tensor, gradient: Tensor) -> None:
        groups = len(self.vectors)
        vectors = self.vectors.float()
        # Some samples at a time: the coordinates of a whole batch would take as much memory as its activations.
        for part, slope in zip(x.split(SAMPLES), gradient.split(SAMPLES), strict=True):
            inputs, slopes = (as_vectors(t, self.spatial, groups).float() for t in (part, slope))
            coordinates = torch.einsum("npgw,gwr->npgr", inputs - self.mean.to(inputs), vectors)
            terms = (coordinates * torch.einsum("npgw,gwr->npgr", slopes, vectors)).sum(1)
            self.total += terms.double().square().sum((0, 1)).to(self.total)
