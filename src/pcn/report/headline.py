"""The numbers at the top of a report, before and after; None is one that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.report.history import before_and_after, growth_before_and_after

Record = dict[str, Any]
LAYERS_ONLY = "in linear and convolutional layers"


def of_plan(plan: Plan | None) -> list[Record]:
    """What a plan says of its layers."""
    before, after, size, stored = None, None, None, None
    if plan is not None:
        before, after = plan.trainable_before, plan.trainable_after
        size, stored = (
            sum(getattr(each, side) for each in plan.layers.values()) for side in ("size_before", "stored_after")
        )
    return [
        number("Trained parameters", "count", (before, after), LAYERS_ONLY),
        number("Stored numbers", "count", (size, stored), "with bases and means"),
        _flops(plan),
    ]


def of_run(plan: Plan | None, metrics: Sequence[Record], result: Record | None) -> list[Record]:
    """What a run has measured, of the whole model."""
    seconds, energy = (growth_before_and_after(metrics, name) for name in ("train_seconds", "energy_j"))
    memory, peak = (before_and_after(metrics, name) for name in ("memory_bytes", "peak_memory_bytes"))
    rows = [
        number("Trained parameters", "count", _sizes(metrics, result, "trainable")),
        number("Stored numbers", "count", _sizes(metrics, result, "total"), "with bases, means, running statistics"),
        _flops(plan),
        number("Training memory", "bytes", memory, "weights, gradients, optimizer"),
        number("Peak GPU memory", "bytes", peak, "median over epochs"),
        number("Time per epoch", "seconds", seconds, "median, training alone"),
        number("Energy per epoch", "joules", energy, "median, by an NVIDIA GPU's own counter"),
    ]
    none_here = () if peak[0] is not None else ("Peak GPU memory", "Energy per epoch")  # there is no GPU
    return [row for row in rows if row["label"] not in none_here or row["before"] is not None]


def number(label: str, unit: str, sides: tuple[float | None, float | None], note: str = "") -> Record:
    return {"label": label, "unit": unit, "before": sides[0], "after": sides[1], "note": note}


def _sizes(metrics: Sequence[Record], result: Record | None, which: str) -> tuple[float | None, float | None]:
    """A count of the whole model on both sides of the switch; where there was none, all there is is before."""
    switch = next((record for record in metrics if record["event"] == "switch"), None)
    if switch is None:
        return (result or {}).get(f"{which}_params"), None
    return switch.get(f"{which}_before"), switch.get(f"{which}_after")


def _flops(plan: Plan | None) -> Record:
    layers = [] if plan is None else list(plan.layers.values())
    sides = _sum(layers, "flops_before"), _sum(layers, "flops_after")
    return number("FLOPs per sample", "count", sides, f"forward, {LAYERS_ONLY}")


def _sum(layers: list[LayerPlan], name: str) -> int | None:
    known = [value for layer in layers if (value := getattr(layer, name)) is not None]
    return sum(known) if known else None
