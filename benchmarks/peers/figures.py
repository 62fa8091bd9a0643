"""Accuracy against parameters, FLOPs and seconds, drawn from the results alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from peers import BENCHMARKS
from peers.order import METHODS
from peers.parents import PARENTS
from peers.report import column, drawn, mean
from peers.results import Results
from plots import STYLE

FIGURES = BENCHMARKS.parent / "docs" / "figures"
AXES = {
    "trainable_params": ("trained parameters (millions), methods side by side", 1e6),
    "flops_per_sample": ("GFLOPs of one forward pass", 1e9),
    "train_seconds": ("seconds, statistics and compilation included", 1.0),
}
COLOURS = (
    *("#333333", "#0072b2", "#56b4e9", "#cc79a7", "#e69f00", "#d55e00", "#f0b088", "#009e73", "#7fcfb6", "#888888"),
    *("#8c510a", "#b2182b", "#542788", "#b8860b"),
)
MARKS = "osv^DPXhd*p<>8"


def draw(results: Results, out: Path = FIGURES) -> Iterator[str]:
    """Draw a figure for every parent and length that has accuracies; yield the names of those."""
    mpl.use("Agg")
    out.mkdir(parents=True, exist_ok=True)
    for parent, epochs in drawn(results):
        groups = list(_groups(results.final.records, parent, epochs))
        name = f"peers_{parent}_{epochs}"
        with mpl.rc_context({**STYLE, "figure.figsize": (9.6, 3.8)}):
            known = [measure for measure in AXES if any(mean(runs, measure) is not None for _, runs in groups)]
            figure, (panels,) = plt.subplots(1, len(known), sharey=True, squeeze=False, layout="constrained")
            for axes, measure in zip(panels, known, strict=True):
                _panel(axes, groups, measure, *AXES[measure])
            panels[0].set_ylabel("test accuracy (%)")
            handles, labels = panels[0].get_legend_handles_labels()
            unique = dict(zip(labels, handles, strict=True))
            figure.legend(unique.values(), unique.keys(), loc="outside upper center", ncols=5)
            figure.savefig(out / f"{name}.png", metadata={"Software": None})
            figure.savefig(out / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)
        yield name


def _groups(records: list[dict[str, Any]], parent: str, epochs: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The runs of each method at each size that have an accuracy."""
    own = [r for r in records if (r["parent"], r["epochs"]) == (parent, epochs) and r["test_accuracy"] is not None]
    for method in METHODS:
        runs = [r for r in own if r["method"] == method]
        for size in PARENTS[parent].sizes:
            near = [r for r in runs if r.get("target") == size]
            if near:
                yield method, near


def _panel(axes: Axes, groups: list[tuple[str, list[dict[str, Any]]]], measure: str, label: str, unit: float) -> None:
    of_one_size = [method for method in dict(groups) if method != "parent"]
    for method, runs in groups:
        place, accuracies = mean(runs, measure), column(runs, "test_accuracy")
        if place is not None:
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            index = METHODS.index(method)
            look = {"color": COLOURS[index], "fmt": MARKS[index], "ms": 5, "lw": 1, "capsize": 2}
            # Networks of one size would hide each other; the parent is of another.
            beside = measure == "trainable_params" and method != "parent"
            aside = 1.03 ** (of_one_size.index(method) - (len(of_one_size) - 1) / 2) if beside else 1.0
            axes.errorbar(aside * place / unit, statistics.fmean(accuracies), spread, label=method, **look)
    axes.set_xlabel(label)
    if measure != "train_seconds":
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 4)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
