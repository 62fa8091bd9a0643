"""Spectra with what a rule keeps of them, and what a plan leaves of every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pcn.display.figure import BLUE, GREY, ORANGE, SMALL, new_figure, plain
from pcn.display.spectra import eigenvalues
from pcn.errors import ConfigError, suggest
from pcn.rank_rules import Rank, Threshold
from pcn.statistics.table import Row, rows, rule_shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pcn.plans.plan import Plan
    from pcn.statistics import Statistics

MOST = 1024  # directions of one layer that are drawn
COLUMNS = 4
DECADES = 8  # what lies below the largest variance by more is rounding


def plot_statistics(statistics: Statistics, rank: Rank | None, layers: Sequence[str] | None) -> Figure:
    """Draw the spectrum of every layer's input, and how much of it a rank rule keeps."""
    rule = rule_shown(rank)
    chosen = list(statistics.layers) if layers is None else list(layers)
    for name in chosen:
        if name not in statistics.layers:
            raise ConfigError(f"no statistics of {name!r}{suggest(name, statistics.layers)}")
    found = {row.layer: row for row in rows(statistics, rule)}
    columns = min(COLUMNS, len(chosen))
    lines = math.ceil(len(chosen) / columns)
    figure = new_figure(1.9 * columns + 0.4, 1.5 * lines + 0.4)
    grid: Any = figure.subplots(lines, columns, squeeze=False)
    threshold = rule.variance if isinstance(rule, Threshold) else None
    for name, axes in zip(chosen, grid.flat, strict=False):
        _spectrum(axes, found[name], eigenvalues(statistics, name, MOST), threshold)
    for axes in grid.flat[len(chosen) :]:
        axes.remove()
    figure.supxlabel("direction", fontsize=SMALL + 1)
    figure.supylabel("variance", fontsize=SMALL + 1)
    figure.suptitle(plain(f"kept by {rule}"), fontsize=SMALL + 1)
    return figure


def _spectrum(axes: Any, row: Row, values: list[float], threshold: float | None) -> None:
    known = "" if row.directions is None else f": {row.directions:,} of {row.width:,}"
    axes.set_title(plain(row.layer) + known, fontsize=SMALL)
    axes.tick_params(labelsize=SMALL - 1, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    positive = [value for value in values if value > 0]
    if not positive:
        axes.text(0.5, 0.5, "not known", ha="center", va="center", fontsize=SMALL, transform=axes.transAxes)
        return
    axes.set_yscale("log")
    lowest = min(max(positive[-1], positive[0] / 10**DECADES), positive[0] / 10)  # a decade at least
    axes.set_ylim(lowest / 2, positive[0] * 2)
    axes.set_xlim(0.5, len(values) + 0.5)
    axes.locator_params(axis="x", integer=True, nbins=4, min_n_ticks=1)
    axes.plot(range(1, len(positive) + 1), positive, color=BLUE, linewidth=1.1, marker="." if len(values) < 5 else None)
    if row.directions is not None:
        axes.axvspan(0.5, min(row.directions, len(values)) + 0.5, color=ORANGE, alpha=0.18, linewidth=0)
    if threshold:
        axes.axhline(threshold, color=ORANGE, linewidth=0.9, linestyle="--")


def plot_plan(plan: Plan) -> Figure:
    """Draw the width of every layer's input and what is kept of it, and the parameters before and after."""
    layers = list(plan.layers.values())
    figure = new_figure(6.6, max(1.8, 0.19 * len(layers) + 1.0))
    widths, sizes = figure.subplots(1, 2, sharey=True)
    widths.set_yticks(range(len(layers)), [plain(layer.name) for layer in layers])
    widths.set_ylim(len(layers) - 0.4, -0.6)
    _bars(widths, [layer.in_features for layer in layers], GREY, "width")
    _bars(widths, [layer.width_after * layer.groups for layer in layers], BLUE, "kept")
    widths.set_xlabel("inputs of the layer", fontsize=SMALL)
    _bars(sizes, [layer.trainable_before for layer in layers], GREY, "before")
    _bars(sizes, [layer.stored_after for layer in layers], ORANGE, "stored after")
    _bars(sizes, [layer.trainable_after for layer in layers], BLUE, "trained after")
    sizes.set_xlabel("parameters of the layer", fontsize=SMALL)
    for axes in (widths, sizes):
        axes.tick_params(labelsize=SMALL)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params(axis="x", nbins=4)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=SMALL, frameon=False, borderpad=0)
    return figure


def _bars(axes: Any, sizes: list[int], colour: str, label: str) -> None:
    axes.barh(range(len(sizes)), sizes, color=colour, height=0.7, label=label)
