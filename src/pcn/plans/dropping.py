"""Planning what to drop: which outputs may go, and which of them do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pcn.config import PCNConfig
from pcn.errors import ConfigError
from pcn.graph import ChannelGraph
from pcn.plans.cutting import cut_failure, hard_coded, without_classes
from pcn.plans.keep import Request, choose, class_scores
from pcn.plans.layer_plan import NO_RANK
from pcn.plans.plan import Plan
from pcn.plans.wiring import Wiring, wiring_of
from pcn.running.example import Example
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
        components = wiring.losing(choice.dropped, [request.layer for request in requests])
        blocked = {**blocked, **hard_coded(model, example, graph, components, choice.dropped, why)}
        choice = choose(requests, wiring, blocked, scores)
    return without_classes(plan, graph, choice.dropped, {**reasons, **choice.reasons})


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
    transformed = {layer.name for layer in plan.transformed if layer.rank is not None}
    read: set[int] = set()
    for name, classes in wiring.inputs.items():
        if name in transformed:
            read.update(classes.tolist())
            continue
        reason = plan.layers[name].reason
        advice = f"; give {name!r} a rank" if reason == NO_RANK else ""
        how = "as it is" if plan.layers[name].transformed else "and is not transformed"
        why = f"{name!r} reads it {how} ({reason}){advice}"
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
        layer.name: row_norms(stats, layer.name, layer.rank).cpu()
        for layer in plan.transformed
        if layer.name in wiring.inputs and layer.rank is not None
    }
    return class_scores(wiring, rows, {name: plan.layers[name].activation or name for name in rows})


def row_norms(stats: Statistics, layer: str, rank: int) -> Tensor:
    """Return (inputs,): the L1 norm of each row of the truncated PCA basis, which speaks for every kind of basis.

    Directions without variance only complete the basis: the input holds nothing along them, so they do not count.
    """
    variances, vectors = stats.spectrum(layer).leading(rank)
    rounding = vectors.shape[1] * torch.finfo(vectors.dtype).eps
    counts = variances > rounding * variances[:, :1]
    return (vectors.abs() * counts[:, None]).flatten(0, 1).sum(1)
