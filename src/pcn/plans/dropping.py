"""Planning what to drop: which outputs may go, which go, and proof on an empty copy that the model still runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from pcn.config import PCNConfig
from pcn.errors import ConfigError, PCNError, TraceError
from pcn.graph import ChannelGraph, check_couplings
from pcn.layers import LAYER_TYPES
from pcn.plans.keep import Request, Wiring, choose, class_scores
from pcn.plans.plan import Cut, LayerPlan, Plan, Slices
from pcn.plans.ranks import NO_RANK
from pcn.running.example import Example
from pcn.running.skeleton import skeleton
from pcn.statistics import Statistics


def plan_outputs(
    plan: Plan,
    model: nn.Module,
    stats: Statistics | None,
    config: PCNConfig,
    requests: list[Request],
    graph: ChannelGraph,
    example: Example,
) -> Plan:
    """Choose the outputs to drop, prove on a copy without weights that the model still runs, and write them down."""
    wiring = wiring_of(plan, graph)
    requests, reasons = _possible(requests, wiring, plan)
    blocked = must_stay(plan, config, graph, wiring)
    scores = _scores(plan, stats, wiring)
    choice = choose(requests, wiring, blocked, scores)
    while choice.dropped.any() and (why := cut_failure(model, example, graph, choice.dropped)) is not None:
        components = _components(requests, wiring, choice.dropped)
        blocked = {**blocked, **hard_coded(model, example, graph, components, choice.dropped, why)}
        choice = choose(requests, wiring, blocked, scores)
    return without_classes(plan, graph, choice.dropped, {**reasons, **choice.reasons})


def without_classes(plan: Plan, graph: ChannelGraph, dropped: Tensor, reasons: Mapping[str, str]) -> Plan:
    """Return the plan with some channel classes dropped from every tensor that has them."""
    slices = _slices(graph, dropped)
    return replace(plan, slices=slices, layers=_with_slices(plan, slices, reasons), usage=None, forms={})


def wiring_of(plan: Plan, graph: ChannelGraph) -> Wiring:
    """Which channel classes every layer of a plan puts out and reads."""
    outputs, inputs = {}, {}
    for name, layer in plan.layers.items():
        classes = graph.tensors.get(f"{name}.weight")
        if classes is None:
            continue
        kind = LAYER_TYPES[layer.kind]
        outputs[name] = classes[kind.out_dim]
        if not layer.depthwise:
            inputs[name] = classes[kind.in_dim].repeat(layer.groups)
    return Wiring(outputs, inputs, graph.class_count)


def _possible(requests: list[Request], wiring: Wiring, plan: Plan) -> tuple[list[Request], dict[str, str]]:
    # A weight that two layers share stands in the graph under one of its names.
    missing = {
        r.layer: plan.layers[r.layer].reason or "it was not called when the model was traced"
        for r in requests
        if r.layer not in wiring.outputs
    }
    for request in requests:
        width = len(wiring.outputs.get(request.layer, ()))
        if request.exact and request.layer in missing:
            raise ConfigError(f"{request.layer!r} cannot drop outputs: {missing[request.layer]}")
        if request.exact and isinstance(request.keep, int) and request.keep > width:
            raise ConfigError(f"{request.layer!r} is asked to keep {request.keep} outputs, but it has only {width}")
    return [r for r in requests if r.layer not in missing], missing


def must_stay(plan: Plan, config: PCNConfig, graph: ChannelGraph, wiring: Wiring) -> dict[int, str]:
    """Say which classes must stay and why: every reader of a dropped channel must be transformed itself."""
    blocked = dict(graph.pinned)
    transformed = {layer.name for layer in plan.transformed}
    read: set[int] = set()
    for name, classes in wiring.inputs.items():
        if name in transformed:
            read.update(classes.tolist())
            continue
        reason = plan.layers[name].reason
        advice = f"; give {name!r} a rank" if reason == NO_RANK else ""
        why = f"{name!r} reads it and is not transformed ({reason}){advice}"
        for cls in classes.unique().tolist():
            blocked.setdefault(cls, why)
    for name, dimensions in graph.tensors.items():
        owner = name.rpartition(".")[0]
        if (pattern := config.excludes(owner)) is not None:
            for cls in torch.cat(dimensions).unique().tolist() if dimensions else []:
                blocked.setdefault(cls, f"it is in {owner!r}, which is excluded by {pattern!r}")
    for classes in wiring.outputs.values():
        for cls in classes.tolist():
            if cls not in read:
                blocked.setdefault(cls, "no transformed layer reads it")
    return blocked


def _scores(plan: Plan, stats: Statistics | None, wiring: Wiring) -> Tensor:
    if stats is None:
        return torch.zeros(wiring.class_count)
    rows = {
        layer.name: stats.basis(layer.name, layer.rank).abs().sum(1).cpu()
        for layer in plan.transformed
        if layer.name in wiring.inputs and layer.rank is not None
    }
    return class_scores(wiring, rows, {name: plan.layers[name].activation or name for name in rows})


def cut_failure(model: nn.Module, example: Example, graph: ChannelGraph, dropped: Tensor) -> str | None:
    """Trace a copy without the dropped channels; return what goes wrong, or None."""
    try:
        check_couplings(skeleton(model, _slices(graph, dropped)), example, graph, dropped)
    except TraceError as error:
        return str(error.__cause__).strip().partition("\n")[0]
    except PCNError as error:
        return str(error)
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

    ``components`` are masks of those that lose some; ``together`` is what goes wrong when all do.
    """
    blocked: dict[int, str] = {}
    for component in components:
        why = cut_failure(model, example, graph, component & dropped) if len(components) > 1 else together
        if why is not None:
            blocked |= dict.fromkeys(component.nonzero().flatten().tolist(), _written(why))
    # Sets that can go one by one but not together all stay.
    return blocked or dict.fromkeys(torch.stack(components).any(0).nonzero().flatten().tolist(), _written(together))


def _written(why: str) -> str:
    return f"its size is written into the model's code ({why})"


def _components(requests: list[Request], wiring: Wiring, dropped: Tensor) -> list[Tensor]:
    """Find the sets of layers that share channels and lose some: one mask over all classes for each."""
    components: list[Tensor] = []
    for request in requests:
        own = torch.zeros_like(dropped)
        own[wiring.outputs[request.layer]] = True
        overlapping = [c for c in components if (c & own).any()]
        components = [c for c in components if not (c & own).any()]
        components.append(torch.stack([own, *overlapping]).any(0))
    return [c for c in components if (c & dropped).any()]


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
        else:
            layer = replace(layer, note=f"rank {layer.rank} for the {left} inputs kept: a plain layer would be smaller")
    if layer.output_rank is not None and layer.output_rank >= layer.kept_outputs // layer.groups:
        layer = replace(layer, output_rank=None)
    return replace(layer, output_reason=output_reason)
