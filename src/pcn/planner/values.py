"""What the directions of every layer's input are worth: numbers that can be compared between layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from pcn.statistics import Statistics

WIDEST = 1024  # directions that are looked at in one layer; wider inputs have little variance beyond

Values = Mapping[str, Tensor]  # layer -> what its first 0, 1, 2, ... directions are worth together, from 0 upwards


@runtime_checkable
class Worth(Protocol):
    """Anything that says what a layer's leading directions are worth.

    ``needs_batches`` when the model has to run; it then gets the batches that the statistics came from.
    """

    @property
    def needs_batches(self) -> bool: ...

    def __call__(
        self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]
    ) -> Values: ...


def directions_of(stats: Statistics, layer: str) -> tuple[Tensor, Tensor, Tensor]:
    """The mean (g, w), variances (g, r) and directions (g, w, r) of a layer's input, as many as are looked at."""
    spectrum = stats.spectrum(layer)
    values, vectors = spectrum.leading(min(spectrum.width, WIDEST))
    return stats.mean(layer).reshape(spectrum.groups, -1), values, vectors


def added_up(each: Tensor) -> Tensor:
    """From what each direction is worth to what the first 0, 1, 2, ... are worth together."""
    return torch.cat([each.new_zeros(1), each.cumsum(0)])
