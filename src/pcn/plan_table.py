"""Printing a plan: layer by layer what is kept, and what that saves."""

from __future__ import annotations

from pcn.plan import LayerPlan, Plan


def plan_table(plan: Plan) -> str:
    """Return the plan as an aligned table with a line of totals, and the reasons of what is left alone."""
    rows: list[tuple[str, ...]] = [("layer", "in", "out", "trainable", "FLOPs", "")]
    rows += [_row(layer) for layer in plan.layers.values() if layer.changed]
    lines = _align(rows) if len(rows) > 1 else ["nothing changes"]
    return "\n".join([*lines, "", *_totals(plan), *_reasons(plan)])


def _totals(plan: Plan) -> list[str]:
    """What all layers of the plan, changed or not, train and compute before and after."""
    lines = [_saved(plan.trainable_before, plan.trainable_after, "trainable in all linear and convolutional layers")]
    known = [layer for layer in plan.layers.values() if layer.flops_before and layer.flops_after]
    if known:
        before, after = (sum(getattr(layer, side) for layer in known) for side in ("flops_before", "flops_after"))
        lines.append(_saved(before, after, "FLOPs per sample in them"))
    return lines


def _saved(before: int, after: int, what: str) -> str:
    return f"{before:,} -> {after:,} {what} ({after / max(before, 1):.1%})"


def _row(layer: LayerPlan) -> tuple[str, ...]:
    kept = f"{layer.in_features}" + (f" -> {layer.kept_inputs}" if layer.kept_inputs != layer.in_features else "")
    inputs = kept + (f" -> {layer.rank}" if layer.rank is not None else "")
    outputs = f"{layer.out_features}" + (
        f" -> {layer.kept_outputs}" if layer.kept_outputs != layer.out_features else ""
    )
    groups = f" in {layer.groups} groups" if layer.groups > 1 else ""
    share = "" if not layer.flops_before else f"{(layer.flops_after or 0) / layer.flops_before:.0%}"
    trainable = f"{layer.trainable_before:,} -> {layer.trainable_after:,}"
    remarks = "; ".join(text for text in (layer.note, layer.output_reason) if text)
    return layer.name, inputs + groups, outputs, trainable, share, remarks


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _reasons(plan: Plan) -> list[str]:
    """One line per reason, with the layers that it keeps as they are."""
    by_reason: dict[str, list[str]] = {}
    for layer in plan.layers.values():
        if layer.reason is not None:
            what = f"inputs stay: {layer.reason}" if layer.changed else layer.reason
            by_reason.setdefault(what, []).append(layer.name)
        if layer.output_reason is not None and not layer.changed:
            by_reason.setdefault(f"outputs stay: {layer.output_reason}", []).append(layer.name)
    for name, reason in plan.left_alone.items():
        by_reason.setdefault(reason, []).append(name)
    lines = [f"  {_shorten(names)}: {reason}" for reason, names in by_reason.items()]
    return ["", "left alone:", *lines] if lines else []


def _shorten(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
