"""The spectra of a model's activations as plain data, in a form small enough to be kept and shown."""

from __future__ import annotations

from typing import Any

from pcn.config import PCNConfig
from pcn.plans.plan import Plan
from pcn.statistics import Statistics
from pcn.statistics.eigenpairs import EIGH_SIZE
from pcn.statistics.sketch import Sketch

FORMAT, VERSION = "pcn-spectra", 1
MOST = 60_000  # eigenvalues in all, which keeps a report below 2 MB
FEW = "fewer than two samples of its input were seen"
WIDE = 256  # directions that are asked of an activation whose eigenvalues are not all found at once

Spectra = dict[str, Any]


def spectra_of(
    stats: Statistics, plan: Plan | None = None, epoch: int | None = None, *, config: PCNConfig | None = None
) -> Spectra:
    """What is known of the layers that were measured and of what they read, with its mean where that is not taken off.

    That goes by the configuration without its rules for single layers, which a report's slider does not have either.

    Eigenvalues stand in descending order, group by group; ``complete`` says that those left out are 0. A plan that
    was made from the statistics has found more of them than would be looked for otherwise. A layer of whose input less
    than two samples were seen, as of an expert that is hardly chosen, has no spectrum.
    """
    if config is not None and not config.centred:
        stats = stats.about_zero(stats.layers)
    seen = {name: key for name, key in stats.layers.items() if stats.samples(key) > 1}
    unseen = dict.fromkeys((name for name in stats.layers if name not in seen), FEW)
    activations = dict.fromkeys(seen.values())
    groups = sum(stats.spectrum(key).groups for key in activations)
    ranks = _ranks(stats, plan)
    return {
        "format": FORMAT,
        "version": VERSION,
        "epoch": epoch,
        "layers": {name: _layer(stats, name) for name in seen},
        "left_alone": stats.left_alone | unseen,
        "activations": {key: _activation(stats, key, ranks.get(key, 1), MOST // groups) for key in activations},
    }


def _layer(stats: Statistics, name: str) -> dict[str, Any]:
    shape = stats.shapes[name]
    return {
        "inputs": shape.inputs,
        "outputs": shape.outputs,
        "groups": shape.groups,
        "taps": shape.taps,
        "bias": shape.bias,
        "frozen": shape.frozen,
        "bias_frozen": shape.bias_frozen,
        "activation": stats.layers[name],
    }


def _ranks(stats: Statistics, plan: Plan | None) -> dict[str, int]:
    """How many directions of every activation a plan has asked for."""
    ranks: dict[str, int] = {}
    for layer in [] if plan is None else plan.transformed:
        key = stats.layers.get(layer.name)
        if key is not None and layer.rank is not None:
            ranks[key] = max(layer.rank, ranks.get(key, 1))
    return ranks


def _activation(stats: Statistics, key: str, rank: int, most: int) -> dict[str, Any]:
    spectrum, moments = stats.spectrum(key), stats.moments[key]
    count = spectrum.width
    if isinstance(moments, Sketch):
        count = moments.leading()[0].shape[-1]
    elif count > EIGH_SIZE:
        count = max(rank, min(count // 8, WIDE))
    count = max(1, min(count, most))
    values = [_without_zeros(group) for group in spectrum.leading(count)[0].tolist()]
    return {
        "width": spectrum.width,
        "groups": spectrum.groups,
        "samples": stats.samples(key),
        "totals": spectrum.total_variance.tolist(),
        "values": values,
        "complete": count == spectrum.width or all(len(group) < count for group in values),
    }


def _without_zeros(values: list[float]) -> list[float]:
    return values[: next((index for index, value in enumerate(values) if value <= 0), len(values))]
