"""Worth by the loss: what the first-order Taylor term says that a sample's loss moves when a direction is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pcn.errors import ConfigError, StatisticsError
from pcn.layers import layer_type
from pcn.planner.values import Values, added_up, eigenpairs_of, forward_of
from pcn.running.example import Example
from pcn.running.gradients import Loss, Reads, predicted_losses
from pcn.running.inputs import as_vectors
from pcn.running.trees import fresh_copy
from pcn.running.untouched import untouched
from pcn.statistics import Statistics

SAMPLES = 64


@dataclass(frozen=True)
class Taylor:
    """Direction j is worth E[(Σ_positions z_j ∂L/∂z_j)²] over samples, from one backward pass over the batches.

    ``loss(model, batch)`` is the mean over a batch; by default a classifier's on labels that it predicts itself.
    """

    loss: Loss | None = None
    needs_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.loss is not None and not callable(self.loss):
            raise ConfigError(f"loss={self.loss!r}: give a function of model and batch")

    def __call__(self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]) -> Values:
        sums = {name: _Sum(model, stats, name) for name in layers}
        forward = forward_of(stats)
        loss = self.loss or predicted_losses(forward)
        samples = 0
        with untouched(model, stats.mode_without_dropout):
            for batch in batches:
                example = Example.of(batch, forward)
                if example.is_empty:  # it has no loss
                    continue
                reads = Reads(model, sums, example.samples)
                with reads.watching():
                    value = loss(model, fresh_copy(batch))
                for name, x, gradient in reads.gradients(value):
                    sums[name].add(x, gradient)
                samples += reads.samples
        if not samples:
            raise StatisticsError("there was no batch to take gradients on: give batches=, a list or a function")
        return {name: added_up(each.total / samples, each.vectors.shape[1]) for name, each in sums.items()}


class _Sum:
    """The squared Taylor terms of one layer's directions, added up."""

    def __init__(self, model: nn.Module, stats: Statistics, layer: str) -> None:
        kind = layer_type(model.get_submodule(layer))
        assert kind is not None
        self.spatial = kind.spatial
        self.mean, _, self.vectors = eigenpairs_of(stats, layer)
        self.total = self.vectors.new_zeros(self.vectors.shape[-1])

    def add(self, x: Tensor, gradient: Tensor) -> None:
        vectors = self.vectors.float()
        inputs, slopes = (as_vectors(t, self.spatial, len(vectors)).split(SAMPLES) for t in (x, gradient))
        # Some samples at a time: the coordinates of a whole batch would take as much memory as its activations.
        for part, slope in zip(inputs, slopes, strict=True):
            centred = part.float() - self.mean.to(part.device, torch.float32)
            coordinates = torch.einsum("npgw,gwr->npgr", centred, vectors)
            terms = (coordinates * torch.einsum("npgw,gwr->npgr", slope.float(), vectors)).sum(1)
            self.total += terms.double().square().sum((0, 1)).to(self.total)
