"""Statistics of two sets of samples, brought together."""

from __future__ import annotations

from pcn.errors import StatisticsError
from pcn.statistics import forms
from pcn.statistics.moments import Moments
from pcn.statistics.sharing import agreed_keys
from pcn.statistics.statistics import LayerShape, Statistics, naming


def merge(mine: Statistics, other: Statistics) -> Statistics:
    """Return the statistics of both sets of samples; neither side changes.

    A layer that one side alone was asked to measure keeps that side's samples, with a remark.
    """
    _check_alike(mine, other)
    key_of = agreed_keys([mine.layers, other.layers])
    shapes = _in_order(mine.shapes, other.shapes)
    layers = {name: key_of[name] for name in shapes if name in key_of}
    moments = dict(mine.moments)
    for name, theirs in other.moments.items():
        key = key_of[name]
        with naming(key):
            moments[key] = forms.merge(moments[key], theirs, mine.options) if key in moments else theirs
    return Statistics(
        layers=layers,
        left_alone={n: r for n, r in (other.left_alone | mine.left_alone).items() if n not in layers},
        moments=moments,
        shapes=shapes,
        example=mine.example or other.example,
        options=mine.options,
        gradients=_gradients(mine, other),
        mode=mine.mode,
        pool=mine.pool,
        remarks={**mine.remarks, **other.remarks, **_half_seen(mine, other), **_half_seen(other, mine)},
    )


def _check_alike(mine: Statistics, other: Statistics) -> None:
    """Raise unless both sides were measured in the same way, on layers of the same sizes that share alike."""
    for name in mine.shapes:
        if name in other.shapes and mine.shapes[name] != other.shapes[name]:
            raise StatisticsError(
                f"{name!r} has (inputs, outputs, groups, taps, bias) {_sizes(mine, name)} on one side and "
                f"{_sizes(other, name)} on the other; merge statistics of one model"
            )
    for name in mine.layers.keys() | other.layers.keys():
        if _readers(mine, name) and _readers(other, name) and _readers(mine, name) != _readers(other, name):
            raise StatisticsError(
                f"{name!r} shares its input with {sorted(_readers(mine, name))} on one side and with "
                f"{sorted(_readers(other, name))} on the other, so that the two cannot be merged; analyze both with "
                "the same of these layers"
            )
    if mine.mode != other.mode:
        raise StatisticsError(f"one side was measured in mode {mine.mode!r}, the other in {other.mode!r}")
    if (mine.pool or 1) != (other.pool or 1):
        raise StatisticsError(
            f"one side was measured with pool={mine.pool}, the other with pool={other.pool}; analyze both alike"
        )


def _sizes(statistics: Statistics, name: str) -> tuple[int, int, int, int, bool]:
    shape = statistics.shapes[name]
    return shape.inputs, shape.outputs, shape.groups, shape.taps, shape.bias


def _in_order(mine: dict[str, LayerShape], other: dict[str, LayerShape]) -> dict[str, LayerShape]:
    """The layers of both, each that only the other side has behind the one that it follows there: as in the model.

    Those that follow none there come before the first that both have.
    """
    names = list(mine)
    at = next((names.index(name) for name in other if name in mine), len(names))
    for name in other:
        if name not in mine:
            names.insert(at, name)
        at = names.index(name) + 1
    both = mine | other
    return {name: both[name] for name in names}


def _half_seen(one: Statistics, other: Statistics) -> dict[str, str]:
    """What is to be said of layers that only one side was asked to measure; one that was never called is no such."""
    return {
        name: f"measured in a part of the passes only ({other.left_alone.get(name, 'not in the model')} in another)"
        for name in one.layers
        if name not in other.shapes
    }


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
