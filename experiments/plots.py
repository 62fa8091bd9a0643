"""Draw the paper's figures from the JSON in experiments/results, as PNG and SVG into docs/figures.

python experiments/plots.py                 every figure whose results are there
python experiments/plots.py --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from plot_questions import open_questions, switched
from records import RESULTS
from table_conv4 import left_out, pairs, thresholds

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
INK, COLOURS = "#333333", ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart by everyone
STYLE = {
    "figure.figsize": (5.2, 3.4),
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.edgecolor": INK,
    "legend.frameon": False,
    "svg.hashsalt": "pcn",  # the same results give the same file
}
Record = dict[str, Any]


def mnist_width(records: list[Record], axes: Axes) -> None:
    """Figure 2a: effective dimensions of the hidden layer against its width."""
    widths = sorted({record["width"] for record in records})
    by_width = [[r for r in records if r["width"] == width] for width in widths]
    _line(axes, widths, [[r["effective_dimensions"] for r in runs] for runs in by_width], "effective dimensions", 0)
    axes.set_xlabel("nodes in the hidden layer (MNIST)")
    axes.set_ylabel("dimensions with variance above 0.1")
    axes.set_ylim(0)
    right = axes.twinx()
    right.grid(visible=False)
    _line(right, widths, [[r["test_accuracy"] for r in runs] for runs in by_width], "test accuracy", 1)
    right.set_ylabel("test accuracy (%)")
    _one_legend(axes, right)


def conv4_dimensions(records: list[Record], axes: Axes) -> None:
    """Figure 2b: effective dimensions of the input of Conv4's fc1, and accuracies, over the epochs."""
    epochs = [point["epoch"] for point in records[0]["curve"]]

    def over_runs(name: str) -> list[list[float]]:
        return [[record["curve"][index][name] for record in records] for index in range(len(epochs))]

    _line(axes, epochs, over_runs("effective_dimensions"), "effective dimensions", 0)
    axes.set_xlabel("epoch (Conv4 on CIFAR-10)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("dimensions of fc1's input above 0.1")
    axes.set_ylim(0)
    right = axes.twinx()
    right.grid(visible=False)
    _line(right, epochs, over_runs("train_accuracy"), "train accuracy", 2)
    _line(right, epochs, over_runs("test_accuracy"), "test accuracy", 1)
    right.set_ylabel("accuracy (%)")
    _one_legend(axes, right)


def conv4_robustness(records: list[Record], axes: Axes) -> None:
    """Test accuracy of Conv4's PCN against the epoch of the switch, for four pairs of thresholds."""
    for colour, pair in enumerate(pairs(records)):
        runs = [record for record in records if thresholds(record) == pair]
        epochs = sorted({record["switch_epoch"] for record in runs})
        by_epoch = [[r["test_accuracy"] for r in runs if r["switch_epoch"] == epoch] for epoch in epochs]
        means, reach = [statistics.fmean(v) for v in by_epoch], _reach(by_epoch)
        places = [epoch + (colour - 1.5) * 0.06 for epoch in epochs]  # side by side, so that error bars can be read
        axes.errorbar(places, means, reach, fmt="o-", ms=3, lw=1, capsize=2, color=COLOURS[colour], label=f"({pair})")
    baseline = RESULTS / "cifar10_conv4.json"
    parents = [r["test_accuracy"] for r in json.loads(baseline.read_text())["records"] if r["network"] == "conv4"]
    axes.axhline(statistics.fmean(parents), color=INK, ls="--", lw=1, label="Conv4 itself")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("switch after epoch")
    axes.set_ylabel("test accuracy at early stopping (%)")
    axes.figure.legend(title="variance above (conv, dense)", loc="outside upper center", ncols=3)


def conv4_ablation(records: list[Record], axes: Axes) -> None:
    """Test accuracy when all layers but one are transformed."""
    layers = sorted({left_out(record) or "" for record in records})
    for index, pair in enumerate(pairs(records)):
        found = [
            [r["test_accuracy"] for r in records if thresholds(r) == pair and left_out(r) == layer] for layer in layers
        ]
        there = [position for position, values in enumerate(found) if values]
        values = [found[position] for position in there]
        means = [statistics.fmean(each) for each in values]
        places = [position + (index - 1.5) * 0.2 for position in there]
        axes.bar(
            places, means, 0.18, yerr=_reach(values), label=f"({pair})", color=COLOURS[index % 4], error_kw={"lw": 0.8}
        )
    axes.set_xticks(range(len(layers)), layers)
    axes.set_xlabel("the layer that is not transformed")
    axes.set_ylabel("test accuracy (%)")
    axes.set_ylim(70)
    axes.grid(visible=False, axis="x")
    axes.figure.legend(title="variance above (conv, dense)", loc="outside upper center", ncols=2)


def _line(axes: Axes, places: list[float], values: list[list[float]], label: str, colour: int) -> None:
    """Draw the mean over the runs, with a band of one standard deviation."""
    means, spread = [statistics.fmean(v) for v in values], [_deviation(v) for v in values]
    axes.plot(places, means, "o-", ms=3, color=COLOURS[colour], label=label)
    low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
    axes.fill_between(places, low, high, color=COLOURS[colour], alpha=0.15, lw=0)


def _reach(values: list[list[float]]) -> list[list[float]]:
    """How far the lowest and the highest run lie from the mean: the paper's error bars."""
    means = [statistics.fmean(each) for each in values]
    return [
        [mean - min(each) for mean, each in zip(means, values, strict=True)],
        [max(each) - mean for mean, each in zip(means, values, strict=True)],
    ]


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _one_legend(*axes: Axes) -> None:
    handles = [handle for each in axes for handle in each.get_legend_handles_labels()[0]]
    axes[0].figure.legend(
        handles, [handle.get_label() for handle in handles], loc="outside upper center", ncols=len(handles)
    )


DRAWINGS: dict[str, tuple[str, Callable[[Record], bool], Callable[[list[Record], Axes], None]]] = {
    "mnist_width": ("mnist_width", bool, mnist_width),
    "conv4_dimensions": ("conv4_dimensions", bool, conv4_dimensions),
    "conv4_robustness": ("conv4_robustness", lambda record: left_out(record) is None, conv4_robustness),
    "conv4_ablation": ("conv4_robustness", lambda record: left_out(record) is not None, conv4_ablation),
    "open_questions_conv4": ("open_questions", switched("conv4"), open_questions),
    "open_questions_wide_resnet20": ("open_questions", switched("wide_resnet20"), open_questions),
}  # the results file, which of its records count, what draws them


def draw(results: Path, out: Path) -> Iterable[str]:
    """Draw every figure whose results are there; yield the names of those."""
    mpl.use("Agg")
    out.mkdir(parents=True, exist_ok=True)
    for name, (source, counts, drawing) in DRAWINGS.items():
        file = results / f"{source}.json"
        records = list(filter(counts, json.loads(file.read_text())["records"])) if file.exists() else []
        if not records:
            print(f"{name}: nothing in {file.name} yet")
            continue
        with mpl.rc_context(STYLE):
            figure, axes = plt.subplots(layout="constrained")
            drawing(records, axes)
            figure.savefig(out / f"{name}.png", metadata={"Software": None})
            figure.savefig(out / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)
        yield name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    print("drawn:", ", ".join(draw(options.results, options.out)) or "nothing")


if __name__ == "__main__":
    main()
