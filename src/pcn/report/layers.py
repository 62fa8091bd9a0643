"""Layers as a report shows them: what each keeps and why, and what another threshold could make of it."""

from __future__ import annotations

from typing import Any

from pcn.config import PCNConfig
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.training.spectra import Spectra

READ_DIRECTLY = "uses its weight without calling it"  # how a plan says so
UNSEEN = "its input was not measured"

Row = dict[str, Any]


def layer_rows(spectra: Spectra, plan: Plan | None, config: PCNConfig) -> list[Row]:
    """One row for each layer: its sizes, what the plan keeps of it, and why no threshold would change it, if so."""
    if plan is None:
        return [_row(_unplanned(name, known), spectra, config, kept=None) for name, known in spectra["layers"].items()]
    return [_row(layer, spectra, config, kept=_kept(layer)) for layer in plan.layers.values()]


def _unplanned(name: str, known: dict[str, Any]) -> LayerPlan:
    kernel = (known["taps"],) if known["taps"] > 1 else ()
    kind = "conv" if known["taps"] > 1 else "layer"
    frozen = {"frozen": known.get("frozen", False), "bias_frozen": known.get("bias_frozen")}  # not in files from before
    return LayerPlan(name, kind, known["inputs"], known["outputs"], known["groups"], kernel, known["bias"], **frozen)


def _row(layer: LayerPlan, spectra: Spectra, config: PCNConfig, kept: Row | None) -> Row:
    known = spectra["layers"].get(layer.name)
    return {
        "name": layer.name,
        "kind": layer.kind,
        "inputs": layer.in_features,
        "outputs": layer.out_features,
        "groups": layer.groups,
        "taps": layer.taps,
        "trained_taps": min(layer.taps, config.kernel_rank or layer.taps),  # with the slider: rules are not in it
        "bias_after": layer.bias or config.centred,  # likewise
        "centred": config.centred,
        "bias": layer.bias,
        "in_positions": layer.in_positions,
        "out_positions": layer.out_positions,
        "size": layer.size_before,
        "frozen": layer.frozen,
        "trains_bias": layer.trains_bias,
        "trainable": layer.trainable_before,
        "flops": layer.flops_before,
        "activation": None if known is None else known["activation"],
        "fixed": _fixed(layer, known is not None, spectra, config),
        "kept": kept,
    }


def _kept(layer: LayerPlan) -> Row:
    return {
        "rank": layer.rank,
        "patterns": layer.kernel_rank,
        "inputs": layer.kept_inputs,
        "outputs": layer.kept_outputs,
        "trained_outputs": layer.trained_outputs,
        "trainable": layer.trainable_after,
        "stored": layer.stored_after,
        "flops": layer.flops_after,
        "reason": layer.reason,
        "output_reason": layer.output_reason,
        "note": layer.note,
    }


def _fixed(layer: LayerPlan, measured: bool, spectra: Spectra, config: PCNConfig) -> str | None:
    """Why no rank rule would change a layer; None where one could."""
    if (pattern := config.excludes(layer.name)) is not None:
        return f"excluded by {pattern!r}"
    if layer.reason is not None and layer.reason.endswith(READ_DIRECTLY):
        return layer.reason
    return None if measured else spectra["left_alone"].get(layer.name, layer.reason or UNSEEN)
