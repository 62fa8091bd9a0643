"""Printing a plan: layer by layer what is kept, and what that saves."""

from __future__ import annotations

from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.tables import align, listed

HEADER = ("layer", "in", "out", "trained", "stored", "FLOPs")
TEXTS = range(3)  # the columns that are texts


def plan_table(plan: Plan) -> str:
    """Return the plan as an aligned table with lines of totals, then remarks and the reasons of what is left alone."""
    rows = [HEADER, *(cells(layer) for layer in plan.layers.values() if layer.changed)]
    lines = align(rows, TEXTS) if len(rows) > 1 else ["nothing changes"]
    return "\n".join(
        [
            *lines,
            "",
            *totals(plan),
            *listed("remarks:", remarks(plan)),
            *listed("left alone:", reasons(plan)),
        ]
    )


def totals(plan: Plan) -> list[str]:
    """What all layers, changed or not, train, store and compute before and after, and what a budget has left."""
    layers = list(plan.layers.values())
    before, stored = (sum(getattr(layer, side) for layer in layers) for side in ("size_before", "stored_after"))
    frozen = ", frozen parts" if any(layer.frozen_size for layer in layers) else ""
    lines = [
        *_of_the_whole_model(plan),
        _saved(plan.trainable_before, plan.trainable_after, "trainable in all linear and convolutional layers"),
        _saved(before, stored, f"stored in them, with bases{frozen} and means"),
    ]
    known = [layer for layer in layers if layer.flops_before and layer.flops_after]
    if known:
        before, after = (sum(getattr(layer, side) for layer in known) for side in ("flops_before", "flops_after"))
        lines.append(_saved(before, after, "FLOPs per sample in them"))
    lines += [] if plan.usage is None else plan.usage.lines()
    return lines if plan.unspent is None else [*lines, plan.unspent]


def _of_the_whole_model(plan: Plan) -> list[str]:
    """What a budget, whose shares are of all that there is, has come to, where that is not in the layers alone."""
    layers = plan.layers.values()
    in_layers = {
        "params": plan.trainable_before,
        "stored": sum(layer.size_before for layer in layers),
        "flops": sum(layer.flops_before or 0 for layer in layers),
    }
    called = {"params": "trainable", "stored": "stored", "flops": "FLOPs per sample"}
    return [
        _saved(*amounts, f"{called[unit]} in the whole model")
        for unit, amounts in plan.whole.items()
        if amounts[0] != in_layers[unit]
    ]


def cells(layer: LayerPlan) -> tuple[str, ...]:
    """What a row says about one layer."""
    kept = f"{layer.in_features}" + (f" -> {layer.kept_inputs}" if layer.kept_inputs != layer.in_features else "")
    inputs = kept + (f" -> {layer.rank}" if layer.rank is not None else "")
    inputs += f" in {layer.kernel_rank} of {layer.taps} patterns" if layer.kernel_rank is not None else ""
    outputs = f"{layer.out_features}" + (
        f" -> {layer.kept_outputs}" if layer.kept_outputs != layer.out_features else ""
    )
    outputs += f" ({layer.trained_outputs} trained)" if layer.output_rank is not None else ""
    groups = f" in {layer.groups} groups" if layer.groups > 1 else ""
    share = "" if not layer.flops_before else f"{(layer.flops_after or 0) / layer.flops_before:.0%}"
    frozen = layer.frozen and not layer.trains_bias
    trained = "frozen" if frozen else f"{layer.trainable_before:,} -> {layer.trainable_after:,}"
    return layer.name, inputs + groups, outputs, trained, f"{layer.stored_after:,}", share


def remarks(plan: Plan) -> dict[str, list[str]]:
    """What is to be said about layers that change, each remark once, with the layers that it holds for."""
    found: dict[str, list[str]] = {}
    for layer in plan.layers.values():
        if layer.changed and layer.note:
            found.setdefault(layer.note, []).append(layer.name)
        if layer.changed and layer.output_reason:
            stay = " stay" if layer.kept_outputs == layer.out_features else ""
            found.setdefault(f"outputs{stay}: {layer.output_reason}", []).append(layer.name)
    return found


def reasons(plan: Plan) -> dict[str, list[str]]:
    """Why layers, or one side of them, stay as they are, each reason once, with the layers that it holds for."""
    found: dict[str, list[str]] = {}
    for layer in plan.layers.values():
        if layer.reason is not None:
            what = f"inputs stay: {layer.reason}" if layer.changed else layer.reason
            found.setdefault(what, []).append(layer.name)
        if layer.output_reason is not None and not layer.changed:
            found.setdefault(f"outputs stay: {layer.output_reason}", []).append(layer.name)
    for name, reason in plan.left_alone.items():
        found.setdefault(reason, []).append(name)
    return found


def _saved(before: int, after: int, what: str) -> str:
    return f"{before:,} -> {after:,} {what} ({after / max(before, 1):.1%})"
