"""Conv4 over its epochs, over switches and thresholds, and with one layer left out, as tables."""

from __future__ import annotations

import statistics

from grouping import Record, Table

SHOWN = (1, 2, 3, 5, 10, 15, 20)  # epochs


def dimensions(records: list[Record]) -> Table:
    """Experiment 2: a row for each of some epochs, means over the runs."""
    head = ["epoch", "runs", "effective dimensions of fc1's input", "train accuracy (%)", "test accuracy (%)"]
    names = ("effective_dimensions", "train_accuracy", "test_accuracy")
    rows = []
    for epoch in SHOWN:
        points = [point for record in records for point in record["curve"] if point["epoch"] == epoch]
        if points:
            means = [statistics.fmean(point[name] for point in points) for name in names]
            rows.append([str(epoch), str(len(points)), f"{means[0]:.1f}", *(f"{value:.2f}" for value in means[1:])])
    return head, rows


def robustness(records: list[Record]) -> Table:
    """The robustness figure: test accuracy for each pair of thresholds, by the epoch of the switch."""
    whole = [record for record in records if left_out(record) is None]
    epochs = sorted({record["switch_epoch"] for record in whole})
    return ["variance above (conv, dense)", *(f"switch after {epoch}" for epoch in epochs)], [
        [f"({pair})", *(shown(whole, pair, switch_epoch=epoch) for epoch in epochs)] for pair in pairs(whole)
    ]


def ablation(records: list[Record]) -> Table:
    """The appendix's ablation: test accuracy for each pair of thresholds, by the layer that is not transformed."""
    partial = [{**record, "left_out": left_out(record)} for record in records if left_out(record) is not None]
    layers = sorted({record["left_out"] for record in partial})
    return ["variance above (conv, dense)", *(f"all but {layer}" for layer in layers)], [
        [f"({pair})", *(shown(partial, pair, left_out=layer) for layer in layers)] for pair in pairs(partial)
    ]


def left_out(record: Record) -> str | None:
    _, sign, layer = record["network"].partition(", without ")
    return layer if sign else None


def thresholds(record: Record) -> str:
    """The pair of variances in a record's name."""
    words = record["network"].replace(",", "").split()
    return f"{words[3]}, {words[5]}"


def pairs(records: list[Record]) -> list[str]:
    return sorted({thresholds(record) for record in records})


def shown(records: list[Record], pair: str, **wanted: object) -> str:
    """The mean of the runs, how many there are, and their lowest and highest value."""
    found = [
        record["test_accuracy"]
        for record in records
        if thresholds(record) == pair and all(record[key] == value for key, value in wanted.items())
    ]
    if not found:
        return ""
    if len(found) == 1:
        return f"{found[0]:.2f} (1 run)"
    return f"{statistics.fmean(found):.2f} ({len(found)} runs, {min(found):.2f} to {max(found):.2f})"
