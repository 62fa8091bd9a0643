"""Worth by measurement: how far the model's output moves from its own when one layer is truncated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pcn.config import check_count
from pcn.errors import ConfigError, StatisticsError
from pcn.layers import layer_type
from pcn.planner.values import Values, eigenpairs_of, forward_of
from pcn.running.example import Example, device_of
from pcn.running.inputs import as_vectors, changed_inputs
from pcn.running.outputs import logits_of
from pcn.running.trees import tensors_in
from pcn.running.untouched import untouched
from pcn.statistics import Statistics

ROUNDING = 1e-9  # of a distance: a divergence of equal predictions may come out a little below zero
Compare = Callable[[Any, Any], Tensor | float]


def prediction_divergence(before: Any, after: Any) -> Tensor:
    """The mean Kullback-Leibler divergence of a classifier's predictions from those that it made before."""
    expected, found = (logits_of(output, "compare=... yourself").double().log_softmax(-1) for output in (before, after))
    return (expected.exp() * (expected - found)).sum(-1).mean()


def output_distance(before: Any, after: Any) -> Tensor:
    """The squared distance of all outputs from those before, relative to their own variance."""
    return _distance_relative_to([before])(before, after)


def _distance_relative_to(outputs: Sequence[Any]) -> Callable[[Any, Any], Tensor]:
    """The same, relative to the variance over several batches: a batch of one sample may have none of its own."""
    variance = _variance(outputs).clamp_min(torch.finfo(torch.float64).tiny)

    def compare(before: Any, after: Any) -> Tensor:
        pairs = zip(_numbers(before), _numbers(after), strict=True)
        return _mean_square(b.double() - a.double() for a, b in pairs) / variance

    return compare


def _variance(outputs: Sequence[Any]) -> Tensor:
    """That of all numbers that a model puts out over some batches, each of its outputs around a mean of its own."""
    alike = [[part for part in parts if part is not None] for parts in zip_longest(*map(_numbers, outputs))]
    means = [torch.stack([p.double().sum() for p in parts]).sum() / sum(p.numel() for p in parts) for parts in alike]
    return _mean_square(part.double() - mean for parts, mean in zip(alike, means, strict=True) for part in parts)


def _numbers(output: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]


def _mean_square(differences: Iterable[Tensor]) -> Tensor:
    """The mean over the elements of all of them."""
    sums = [(each.square().sum(), each.numel()) for each in differences]
    if not sums:
        raise ConfigError(
            "the model puts out no floating-point numbers: give compare=... yourself, or say what counts of its output "
            "with forward=lambda model, batch: model(batch).logits or the like"
        )
    return torch.stack([total for total, _ in sums]).sum() / sum(number for _, number in sums)


@dataclass(frozen=True)
class Divergence:
    """The first r directions of a layer are worth the distance that truncating it to none, and not to r, would make.

    ``compare(before, after)`` measures that distance for one batch; between the ranks that are tried (none, then
    1/2, 1/4, ... of the width, down to 1 / ``finest``) it is interpolated.
    """

    compare: Compare = output_distance
    finest: int = 16
    needs_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not callable(self.compare):
            raise ConfigError(f"compare={self.compare!r}: give a function of the outputs before and after")
        check_count("finest", self.finest)

    def __call__(self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]) -> Values:
        device = device_of(model)
        with untouched(model, stats.mode_without_dropout):
            calls = [Example.of(batch, forward_of(stats), device) for batch in batches]
            calls = [call for call in calls if not call.is_empty]
            if not calls:
                raise StatisticsError("there was no batch to compare outputs on: give batches=, a list or a function")
            before = [call.call(model) for call in calls]
            compare = _distance_relative_to(before) if self.compare is output_distance else self.compare

            def distance() -> float:
                each = [compare(b, call.call(model)) for b, call in zip(before, calls, strict=True)]
                return _over_samples([_number(mean) for mean in each], calls)

            return {name: self._curve(model, stats, name, distance) for name in layers}

    def _curve(self, model: nn.Module, stats: Statistics, name: str, distance: Callable[[], float]) -> Tensor:
        _, width, known = eigenpairs_of(stats, name)[2].shape
        tried = {known, *(max(1, known >> power) for power in range(1, self.finest.bit_length()))} - {width}
        ranks = [0, *sorted(tried), width]
        distances = []
        for rank in ranks[:-1]:
            with changed_inputs(model, {name: _truncation(model, stats, name, rank)}):
                distances.append(distance())
        return _interpolated(ranks, [*distances, 0.0])


def _number(distance: Tensor | float) -> float:
    """What a function of one's own has measured, if it is a distance."""
    try:
        number = float(distance)
    except (TypeError, ValueError, RuntimeError):
        given = f"shape {tuple(distance.shape)}" if isinstance(distance, Tensor) else f"type {type(distance).__name__}"
        said = f"compare returned something of {given}: have it return one number for a whole batch"
        raise ConfigError(said) from None
    if number < -ROUNDING:
        raise ConfigError(
            f"compare returned a negative number, {number:g}: have it return a distance, which is 0 where the outputs "
            "are the same"
        )
    return max(0.0, number) if math.isfinite(number) else number


def _over_samples(means: Sequence[float], calls: Sequence[Example]) -> float:
    """The mean over all samples from that over each batch: how they are cut into batches means nothing."""
    weights = [call.samples or 1 for call in calls]  # inputs without a tensor do not say how many samples they are
    return sum(weight * mean for weight, mean in zip(weights, means, strict=True)) / sum(weights)


def _truncation(model: nn.Module, stats: Statistics, name: str, rank: int) -> Callable[[Tensor], Tensor]:
    """What is left of a layer's input with its first directions alone."""
    kind = layer_type(model.get_submodule(name))
    assert kind is not None
    channels = kind.channel_dim
    mean, _, vectors = eigenpairs_of(stats, name)
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
