"""What the directions of every layer's input are worth: numbers that can be compared between layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from pcn.errors import ConfigError, StatisticsError
from pcn.running.example import Forward
from pcn.statistics import Statistics

WIDEST = 1024  # directions of one layer that are looked at one by one

Values = Mapping[str, Tensor]  # layer -> what its first 0, 1, 2, ... and all directions are worth together, from 0 up


@runtime_checkable
class Worth(Protocol):
    """Anything that says what a layer's leading directions are worth.

    ``needs_batches`` when the model has to run; it then gets the batches that the statistics came from. One that has
    ``by_size = True`` says what as much is worth as these directions train, in whatever form: of those that cost as
    much a layer gets the one with the largest response, which is worth something too with ``beside_response = True``.
    """

    @property
    def needs_batches(self) -> bool: ...

    def __call__(
        self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]
    ) -> Values: ...


def forward_of(stats: Statistics) -> Forward | None:
    """How the model was called when it was measured, where the user has said so."""
    return None if stats.example is None else stats.example.forward


def eigenpairs_of(stats: Statistics, layer: str) -> tuple[Tensor, Tensor, Tensor]:
    """The mean (g, w), variances (g, r) and directions (g, w, r) of a layer's input, as many as are looked at."""
    spectrum = stats.spectrum(layer)
    values, vectors = spectrum.leading(min(spectrum.width, WIDEST))
    return stats.mean(layer).reshape(spectrum.groups, -1), values, vectors


def added_up(each: Tensor, width: int, rest: float = 0.0) -> Tensor:
    """From what each direction is worth to what the first 0, 1, 2, ... are worth together.

    Those that were not looked at one by one have equal parts of the ``rest``.
    """
    beyond = width - len(each)
    tail = each.new_full((beyond,), rest / max(beyond, 1))
    sums = torch.cat([each, tail]).cumsum(0)
    return torch.cat([each.new_zeros(1), sums.cummax(0).values])  # added side by side, on a GPU, sums may fall by a bit


def check_values(values: Values, widths: Mapping[str, int]) -> None:
    """Raise unless there is a sensible number for every number of directions of every layer."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"the worth is {shorten(repr(values), 60)}: have it return a tensor for every layer, by name")
    for layer, width in widths.items():
        worth = values.get(layer)
        if not isinstance(worth, Tensor) or tuple(worth.shape) != (width + 1,):
            found = f"a tensor of shape {tuple(worth.shape)}" if isinstance(worth, Tensor) else repr(worth)
            raise ConfigError(
                f"the worth of {layer!r} is {shorten(found, 60)}: give what 0, 1, ..., {width} directions are worth, "
                "as one tensor"
            )
        if not bool(worth.isfinite().all()):
            raise StatisticsError(f"the worth of {layer!r} is not finite: the loss or the outputs may hold NaN")
        if bool((worth.diff() < 0).any()) or float(worth[0]) != 0:
            raise ConfigError(f"the worth of {layer!r} does not rise from 0: more directions can be worth no less")
