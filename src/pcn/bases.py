"""The new coordinates of every layer that a plan transforms: all that surgery takes from the statistics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pcn.errors import PlanError
from pcn.layers import LAYER_TYPES
from pcn.plan import LayerPlan, Plan
from pcn.statistics import Statistics


@dataclass(frozen=True)
class Basis:
    """A layer's mean (m,) and directions (m, r); ``block`` holds those of the kept inputs alone (|S|, r), if wanted."""

    mean: Tensor
    directions: Tensor
    block: Tensor | None = None


Bases = dict[str, Basis]


def find_bases(plan: Plan, stats: Statistics) -> Bases:
    """Work out the coordinates for a plan; with them it can be applied without the statistics."""
    return {layer.name: _find(plan, layer, stats) for layer in plan.transformed}


def kept_inputs(plan: Plan, layer: LayerPlan) -> Tensor | None:
    """The inputs of a layer that are left, counted over all groups, or None for all."""
    kept = plan.kept(f"{layer.name}.weight", LAYER_TYPES[layer.kind].in_dim)
    if kept is None:
        return None
    width = layer.in_features // layer.groups
    return (torch.arange(layer.groups)[:, None] * width + torch.tensor(kept)).flatten()


def _find(plan: Plan, layer: LayerPlan, stats: Statistics) -> Basis:
    assert layer.rank is not None
    mean = stats.mean(layer.name)
    if len(mean) != layer.in_features:
        raise PlanError(
            f"the statistics of {layer.name!r} are of {len(mean)} inputs, the layer has {layer.in_features}: "
            "apply the plan with the statistics that it was made from"
        )
    kept = kept_inputs(plan, layer)
    block = None
    if kept is not None and layer.order == "kept_block":
        block = stats.block_basis(layer.name, kept, layer.rank)
    return Basis(mean, stats.basis(layer.name, layer.rank), block)
