"""A plan without some channel classes: what every tensor and layer keeps, and whether the model still runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from pcn.errors import PCNError, PlanError, TraceError, first_line
from pcn.graph import ChannelGraph, check_couplings
from pcn.layers import LAYER_TYPES
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Cut, Plan, Slices
from pcn.plans.skeleton import skeleton
from pcn.running.example import Example


def without_classes(plan: Plan, graph: ChannelGraph, dropped: Tensor, reasons: Mapping[str, str]) -> Plan:
    """Return the plan with some channel classes dropped from every tensor that has them."""
    slices = _slices(graph, dropped)
    layers = _with_slices(plan, slices, reasons)
    if graph.untraced is not None:
        layers = {name: _with_untraced(layer, graph.untraced) for name, layer in layers.items()}
    return replace(plan, slices=slices, layers=layers, usage=None, forms={}, unspent=None, whole={})


def _slices(graph: ChannelGraph, dropped: Tensor) -> Slices:
    slices: dict[str, dict[int, Cut]] = {}
    for name, tensor in graph.tensors.items():
        for dim, classes in enumerate(tensor):
            if dropped[classes].any():
                kept = (~dropped[classes]).nonzero().flatten().tolist()
                slices.setdefault(name, {})[dim] = Cut(len(classes), tuple(kept))
    return slices


def _with_slices(plan: Plan, slices: Slices, reasons: Mapping[str, str]) -> dict[str, LayerPlan]:
    layers = {}
    for name, layer in plan.layers.items():
        kind = LAYER_TYPES[layer.kind]
        cuts = slices.get(f"{name}.weight", {})
        outputs = len(cuts[kind.out_dim].kept) if kind.out_dim in cuts else layer.out_features
        inputs = len(cuts[kind.in_dim].kept) * layer.groups if kind.in_dim in cuts else layer.in_features
        if layer.depthwise:
            inputs = outputs * layer.in_features // layer.out_features
        layers[name] = _settle(replace(layer, kept_outputs=outputs, kept_inputs=inputs), reasons.get(name))
    return layers


def _settle(layer: LayerPlan, output_reason: str | None) -> LayerPlan:
    """Fit the ranks to what is left of inputs and outputs, or say that a plain layer would be smaller."""
    left = layer.kept_inputs // layer.groups
    if layer.rank is not None and layer.rank >= left != layer.in_features // layer.groups:
        if layer.order == "kept_block":
            layer = replace(layer, rank=left)
        elif layer.kernel_rank is None:
            layer = layer.with_note(f"rank {layer.rank} for the {left} inputs kept: a plain layer would be smaller")
    if layer.output_rank is not None and layer.output_rank >= layer.kept_outputs // layer.groups:
        layer = replace(layer, output_rank=None, note=None if layer.rank is None else layer.note)
    return replace(layer, output_reason=output_reason)


def _with_untraced(layer: LayerPlan, why: str) -> LayerPlan:
    """Say of a layer that loses outputs that nobody could see whether the model needs them while it trains."""
    if layer.kept_outputs == layer.out_features:
        return layer
    return layer.with_note(
        f"whether all of its outputs are needed in train mode is unknown, as that cannot be traced: {why}"
    )


def cut_failure(model: nn.Module, example: Example, graph: ChannelGraph, dropped: Tensor) -> str | None:
    """Trace a copy without the dropped channels; return why they must stay, or None."""
    try:
        bare = skeleton(model, _slices(graph, dropped))
    except PlanError as error:
        return f"whether the model runs without it cannot be tried: {error}"
    try:
        check_couplings(bare, example, graph, dropped)
    except TraceError as error:
        return _written(first_line(error.__cause__))
    except PCNError as error:
        return _written(str(error))
    return None


def hard_coded(
    model: nn.Module,
    example: Example,
    graph: ChannelGraph,
    components: list[Tensor],
    dropped: Tensor,
    together: str,
) -> dict[int, str]:
    """Find the sets of channels that the model's code does not let go, by dropping one connected set at a time.

    ``components`` are masks of those that lose some; ``together`` is why not all of them can.
    """
    blocked: dict[int, str] = {}
    for component in components:
        why = cut_failure(model, example, graph, component & dropped) if len(components) > 1 else together
        if why is not None:
            blocked |= dict.fromkeys(component.nonzero().flatten().tolist(), why)
    # Sets that can go one by one but not together all stay.
    return blocked or dict.fromkeys(torch.stack(components).any(0).nonzero().flatten().tolist(), together)


def _written(why: str) -> str:
    return f"its size is written into the model's code ({why})"
