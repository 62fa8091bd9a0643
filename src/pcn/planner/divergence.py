"""Worth by measurement: how far the model's output moves from its own when one layer is truncated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pcn.errors import StatisticsError
from pcn.layers import layer_type
from pcn.planner.values import Values, directions_of, forward_of
from pcn.running.example import Example, device_of
from pcn.running.inputs import as_vectors, changed_inputs
from pcn.running.outputs import logits_of
from pcn.running.untouched import untouched
from pcn.statistics import Statistics

Compare = Callable[[Any, Any], Tensor]


def prediction_divergence(before: Any, after: Any) -> Tensor:
    """The mean Kullback-Leibler divergence of a classifier's predictions from those that it made before."""
    expected, found = (logits_of(output, "compare=... yourself").double().log_softmax(-1) for output in (before, after))
    return (expected.exp() * (expected - found)).sum(-1).mean()


def output_distance(before: Any, after: Any) -> Tensor:
    """The squared distance of all outputs from those before, relative to their own variance."""
    pairs = [
        (a.double(), b.double())
        for a, b in zip(tree_leaves(before), tree_leaves(after), strict=True)
        if isinstance(a, Tensor) and a.is_floating_point()
    ]
    moved = torch.stack([(b - a).square().sum() for a, b in pairs]).sum()
    spread = torch.stack([(a - a.mean()).square().sum() for a, _ in pairs]).sum()
    return moved / spread.clamp_min(torch.finfo(torch.float64).tiny)


@dataclass(frozen=True)
class Divergence:
    """The first r directions of a layer are worth the distance that truncating it to none, and not to r, would make.

    ``compare(before, after)`` measures that distance for one batch; between the ranks that are tried (none, then
    1 / ``finest``, ..., 1/4, 1/2 of the width) it is interpolated.
    """

    compare: Compare = output_distance
    finest: int = 16
    needs_batches: ClassVar[bool] = True

    def __call__(self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]) -> Values:
        device = device_of(model)
        with untouched(model, stats.mode_without_dropout):
            calls = [Example.of(batch, forward_of(stats), device) for batch in batches]
            if not calls:
                raise StatisticsError("there was no batch to compare outputs on: give batches=, a list or a function")
            before = [call.call(model) for call in calls]
            return {name: self._curve(model, stats, name, calls, before) for name in layers}

    def _curve(self, model: nn.Module, stats: Statistics, name: str, calls: list[Example], before: list[Any]) -> Tensor:
        _, width, known = directions_of(stats, name)[2].shape
        tried = {known, *(max(1, known >> power) for power in range(1, self.finest.bit_length()))} - {width}
        ranks = [0, *sorted(tried), width]
        distances = []
        for rank in ranks[:-1]:
            with changed_inputs(model, {name: _truncation(model, stats, name, rank)}):
                each = [self.compare(b, call.call(model)) for b, call in zip(before, calls, strict=True)]
            distances.append(float(torch.stack([distance.cpu() for distance in each]).mean()))
        return _interpolated(ranks, [*distances, 0.0])


def _truncation(model: nn.Module, stats: Statistics, name: str, rank: int) -> Callable[[Tensor], Tensor]:
    """What is left of a layer's input with its first directions alone."""
    kind = layer_type(model.get_submodule(name))
    assert kind is not None
    channels = kind.channel_dim
    mean, _, vectors = directions_of(stats, name)
    kept = vectors[..., :rank]

    def change(x: Tensor) -> Tensor:
        rows = as_vectors(x, kind.spatial, len(vectors))
        centre, basis = mean.to(rows), kept.to(rows)
        left = torch.einsum("npgr,gwr->npgw", torch.einsum("npgw,gwr->npgr", rows - centre, basis), basis) + centre
        return left.reshape(x.movedim(channels, -1).shape).movedim(-1, channels).contiguous()

    return change


def _interpolated(ranks: list[int], distances: list[float]) -> Tensor:
    """Worth of 0, 1, 2, ... directions from distances at some ranks; one that makes things worse is worth nothing.

    >>> _interpolated([0, 2, 3], [1.0, 0.2, 0.0])
    tensor([0.0000, 0.4000, 0.8000, 1.0000], dtype=torch.float64)
    """
    worth = torch.tensor([distances[0] - distance for distance in distances], dtype=torch.float64).cummax(0).values
    pieces = [
        torch.linspace(low, high, b - a + 1, dtype=torch.float64)[1:]
        for (low, high), (a, b) in zip(pairwise(worth.tolist()), pairwise(ranks), strict=True)
    ]
    return torch.cat([worth[:1], *pieces])
