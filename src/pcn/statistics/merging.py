"""Statistics of two sets of samples, brought together."""

from __future__ import annotations

from pcn.errors import StatisticsError
from pcn.statistics import forms
from pcn.statistics.moments import Moments
from pcn.statistics.sharing import agreed_keys
from pcn.statistics.statistics import Statistics, naming


def merge(mine: Statistics, other: Statistics) -> Statistics:
    """Return the statistics of both sets of samples; neither side changes."""
    for name in mine.layers.keys() | other.layers.keys():
        if _readers(mine, name) and _readers(other, name) and _readers(mine, name) != _readers(other, name):
            raise StatisticsError(
                f"{name!r} shares its input with {sorted(_readers(mine, name))} on one side and with "
                f"{sorted(_readers(other, name))} on the other, so that the two cannot be merged"
            )
    if mine.mode != other.mode:
        raise StatisticsError(f"one side was measured in mode {mine.mode!r}, the other in {other.mode!r}")
    key_of = agreed_keys([mine.layers, other.layers])
    layers = {name: key_of[name] for name in mine.shapes if name in key_of}
    moments = dict(mine.moments)
    for name, theirs in other.moments.items():
        key = key_of[name]
        with naming(key):
            moments[key] = forms.merge(moments[key], theirs, mine.options) if key in moments else theirs
    return Statistics(
        layers=layers,
        left_alone={n: r for n, r in (other.left_alone | mine.left_alone).items() if n not in layers},
        moments=moments,
        shapes=mine.shapes,
        example=mine.example or other.example,
        options=mine.options,
        gradients=_gradients(mine, other),
        mode=mine.mode,
    )


def _gradients(mine: Statistics, other: Statistics) -> dict[str, Moments]:
    """The gradients of both; none for a layer that one side has measured without them."""
    merged = {}
    for name in mine.gradients | other.gradients:
        parts = [side.gradients.get(name) for side in (mine, other) if name in side.layers]
        held = [part for part in parts if part is not None]
        if len(held) == len(parts):
            with naming(name):
                merged[name] = held[0] if len(held) == 1 else forms.merge(held[0], held[1], mine.options)
    return merged


def _readers(statistics: Statistics, name: str) -> set[str]:
    key = statistics.layers.get(name)
    return {layer for layer, other in statistics.layers.items() if other == key} if key is not None else set()
