"""What came out, as Markdown: a table for every parent, size and length, and the points that the grid has chosen."""

from __future__ import annotations

import statistics
from typing import Any

from markdown_tables import markdown
from peers.intervals import paired_difference
from peers.order import METHODS, PIECES
from peers.parents import PARENTS
from peers.results import Results

Record = dict[str, Any]
OURS, INSTEAD = "pcn-planner", "narrow"  # what a person would do instead
IN_SHORT = {  # what the README shows, as it calls it; ours is what a budget does by itself now
    "parent": "the wide network",
    OURS: "PCN within a budget",
    "pcn-paper": "PCN, the paper's ranks",
    INSTEAD: "narrower, from scratch",
    "svd-quarter": "low rank by SVD",
    "torch-pruning": "Torch-Pruning",
}
NOTHING = "No run of the comparison is recorded yet."


def tables(results: Results) -> list[str]:
    """Every table that the results are enough for, or one sentence that says that there is none."""
    found = [final_table(results, *key) for key in comparisons() if select(results, *key)]
    grid = grid_table(results)
    return [*found, *([grid] if grid else [])] or [NOTHING]


def comparisons() -> list[tuple[str, int, int]]:
    """The parents, sizes and lengths that are compared."""
    return list(dict.fromkeys((piece.parent, piece.target, piece.epochs) for piece in PIECES))


def select(results: Results, parent: str, target: int, epochs: int) -> dict[str, list[Record]]:
    """The runs of one comparison by method; the parent, which has no size to meet, belongs to all of them."""
    found: dict[str, list[Record]] = {}
    for record in results.final.records:
        same = record["parent"] == parent and record["epochs"] == epochs
        near = record["method"] == "parent" or record.get("target") == target
        if same and near:
            found.setdefault(record["method"], []).append(record)
    own = any(method != "parent" for method in found) or target == PARENTS[parent].sizes[0]
    return {method: found[method] for method in METHODS if method in found} if own else {}


def latest(parent: str, found: dict[str, list[Record]]) -> str:
    """Our method as it is now, where that has run."""
    return now if (now := PARENTS[parent].now) in found else OURS


def drawn(results: Results) -> list[tuple[str, int]]:
    """The parents and lengths that have runs with an accuracy at a size that is compared."""
    known = (record for record in results.final.records if record["test_accuracy"] is not None)
    sized = (record for record in known if record.get("target") in PARENTS[record["parent"]].sizes)
    return list(dict.fromkeys((record["parent"], record["epochs"]) for record in sized))


def final_table(results: Results, parent: str, target: int, epochs: int) -> str:
    """A row for each method, best first."""
    found = select(results, parent, target, epochs)
    ours = latest(parent, found)
    ranked = sorted(found, key=lambda method: -(mean(found[method], "test_accuracy") or 0.0))
    head = ["method", "runs", "trainable", "stored", "MFLOPs", "test accuracy (%)", "lowest to highest"]
    head += [f"minus {INSTEAD} (95%)", f"{ours} minus it (95%)", "seconds", "an epoch, s", "kJ", "peak MiB"]
    rows = [_row(method, ours, found) for method in ranked]
    title = f"**{parent}, {target:,} trainable parameters, {epochs} epochs** ({results.machine()})"
    filled = [place for place, _ in enumerate(head) if any(row[place] for row in rows)]  # what nothing is known of goes
    head, *rows = ([row[place] for place in filled] for row in (head, *rows))
    return f"{title}\n\n{markdown(head, rows)}"


def _row(method: str, ours: str, found: dict[str, list[Record]]) -> list[str]:
    runs = found[method]
    accuracies = column(runs, "test_accuracy")
    return [
        method,
        counted(runs, "test_accuracy"),
        shown(runs, "trainable_params", 1, ",.0f"),
        shown(runs, "total_params", 1, ",.0f"),
        shown(runs, "flops_per_sample", 1e6, ".0f"),
        shown(runs, "test_accuracy", 1, ".2f"),
        f"{min(accuracies):.2f} to {max(accuracies):.2f}" if len(accuracies) > 1 else "",
        _difference(method, INSTEAD, found),
        _difference(ours, method, found),
        shown(runs, "train_seconds", 1, ".0f"),
        usual_epoch(runs),
        shown(runs, "energy_j", 1000, ".1f"),
        shown(measured_alone(runs), "peak_mib", 1, ".0f"),
    ]


def _difference(method: str, other: str, found: dict[str, list[Record]]) -> str:
    """How much better one is than the other on the same seeds, over how many where they have more runs.

    Blank where that cannot be said.
    """
    runs, others = (found.get(each, []) for each in (method, other))
    difference = None if method == other else paired_difference(by_seed(runs), by_seed(others))
    if difference is None:
        return ""
    some = 1 < difference.pairs < max(len(runs), len(others))
    return f"{difference}, {difference.pairs} pairs" if some else str(difference)


def short_tables(results: Results) -> str:
    """What has run of the best known methods at the first size and length of each parent, where ours has.

    A table for each parent: a few columns, in the order of ``IN_SHORT``.
    """
    first: dict[str, tuple[str, int, int]] = {}
    for parent, target, epochs in comparisons():
        first.setdefault(parent, (parent, target, epochs))
    found = ((key, select(results, *key)) for key in first.values())
    return "\n\n".join(_short_table(*key, methods) for key, methods in found if latest(key[0], methods) in methods)


def _short_table(parent: str, target: int, epochs: int, found: dict[str, list[Record]]) -> str:
    head = ["network", "accuracy (%)", "PCN above it by (95%)", "trained (M)", "stored (M)", "MFLOPs", "seconds"]
    ours = latest(parent, found)
    named = {ours if method == OURS else method: name for method, name in IN_SHORT.items()}
    rows = [
        [
            f"**{name}**" if method == ours else name,
            shown(found[method], "test_accuracy", 1, ".2f"),
            _difference(ours, method, found),
            shown(found[method], "trainable_params", 1e6, ".2f"),
            shown(found[method], "total_params", 1e6, ".2f"),
            shown(found[method], "flops_per_sample", 1e6, ",.0f"),
            shown(found[method], "train_seconds", 1, ".0f"),
        ]
        for method, name in named.items()
        if method in found
    ]
    runs = counted(found[ours], "test_accuracy")
    title = f"**{parent}, {target:,} trained parameters, {epochs} epochs, {runs} runs**"
    return f"{title}\n\n{markdown(head, rows)}"


def grid_table(results: Results) -> str | None:
    """What the grid has chosen for each method, with the validation accuracies of the best and the worst point."""
    rows = []
    for parent in PARENTS:
        for method in METHODS:
            point = results.chosen(method, parent)
            if point is not None:
                runs = [r for r in results.grid.records if (r["method"], r["parent"]) == (method, parent)]
                values = column(runs, "validation_accuracy")
                spread = [f"{max(values):.2f}", f"{min(values):.2f}"] if values else ["", ""]
                rates = [f"{point.learning_rate:g}", f"{point.weight_decay:g}"]
                rows.append([parent, method, *rates, *spread, str(len(runs) - len(values))])
    head = [
        "parent",
        "method",
        "learning rate",
        "weight decay",
        "validation (%)",
        "lowest of the grid",
        "diverged",
    ]
    return f"**What the grid has chosen**\n\n{markdown(head, rows)}" if rows else None


def by_seed(runs: list[Record], name: str = "test_accuracy") -> dict[int, float]:
    """The values that are known: a run that has diverged has no accuracy, and is in no pair."""
    return {record["seed"]: record[name] for record in runs if record[name] is not None}


def column(runs: list[Record], name: str) -> list[Any]:
    """The values that are known; records of earlier code have no name for what it did not measure."""
    return [record[name] for record in runs if record.get(name) is not None]


def mean(runs: list[Record], name: str) -> float | None:
    values = column(runs, name)
    return statistics.fmean(values) if values else None


def counted(runs: list[Record], accuracy: str) -> str:
    """How many runs there are, and how many of them have diverged."""
    diverged = len(runs) - len(column(runs, accuracy))
    return f"{len(runs)}, {diverged} diverged" if diverged else str(len(runs))


def measured_alone(runs: list[Record]) -> list[Record]:
    """The runs whose peak is known best: those that had the GPU alone, else all but early ones, which hold the data."""
    return [run for run in runs if run.get("timed_epochs")] or [run for run in runs if "timed_epochs" in run]


def usual_epoch(runs: list[Record]) -> str:
    """The seconds of an epoch of the network that is compared, blank where none was timed alone."""
    known = column(runs, "last_epochs_s")
    return f"{statistics.median(epoch for epochs in known for epoch in epochs):.2f}" if known else ""


def shown(runs: list[Record], name: str, unit: float, form: str) -> str:
    """The mean in another unit, blank where none is known."""
    value = mean(runs, name)
    return "" if value is None else format(value / unit, form)
