"""A plain network of given widths: which channels each layer keeps when some are shared with others."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from pcn.errors import ConfigError, CouplingError, suggest
from pcn.graph import ChannelGraph
from pcn.plans.cutting import without_classes
from pcn.plans.plan import Plan
from pcn.plans.wiring import Wiring, wiring_of


def narrowed(plan: Plan, graph: ChannelGraph, widths: Mapping[str, int]) -> Plan:
    """Return the plan of a plain network with these outputs: ``reshape_`` cuts a new model to it, to train anew.

    The first channels by index are kept, which is as good as any before training. What frozen layers put out or read
    stays.
    """
    wiring = wiring_of(plan, graph)
    graph = frozen_pinned(plan, graph, wiring)
    for name, width in widths.items():
        if name not in wiring.outputs:
            raise ConfigError(f"there is no layer {name!r} with outputs to choose{suggest(name, wiring.outputs)}")
        most = len(wiring.outputs[name])
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= most:
            raise ConfigError(f"{name!r} cannot have {width!r} outputs: give a whole number from 1 to {most}")
    kept = first_kept(wiring, widths, graph.pinned)
    for name, width in widths.items():
        if int(kept[wiring.outputs[name]].sum()) != width:
            raise CouplingError(_refusal(name, width, kept, wiring, graph))
    plain = {
        name: replace(p, rank=None, output_rank=None, kernel_rank=None, note=None) for name, p in plan.layers.items()
    }
    return without_classes(replace(plan, layers=plain), graph, ~kept, {})


def frozen_pinned(plan: Plan, graph: ChannelGraph, wiring: Wiring) -> ChannelGraph:
    """The graph in which all stays that layers with frozen weights put out or read: they would not learn anew."""
    pinned = dict(graph.pinned)
    for channels in (wiring.outputs, wiring.inputs):
        for name, classes in channels.items():
            if plan.layers[name].frozen:
                pinned = dict.fromkeys(classes.tolist(), f"the weight of {name!r} is frozen") | pinned
    return replace(graph, pinned=pinned)


def first_kept(wiring: Wiring, widths: Mapping[str, int], pinned: Container[int]) -> Tensor:
    """Say which classes stay: in every layer, small ones first, as many of the first as its width allows.

    What layers without a width put out stays, unless they share it, and so does the first that any layer puts out or
    reads. A layer may then get another width than it is given; asked for what all have got, the answer is the same.
    """
    kept = torch.ones(wiring.class_count, dtype=torch.bool)
    undecided = torch.tensor([cls not in pinned for cls in range(wiring.class_count)])
    needed = torch.zeros_like(kept)
    needed[[min(family) for family in wiring.families]] = True
    for name in sorted(widths, key=lambda name: len(wiring.outputs[name])):
        classes, sizes = wiring.outputs[name].unique(return_counts=True)
        free = undecided[classes]
        room = widths[name] - int(sizes[~free & kept[classes]].sum())
        classes, sizes = classes[free], sizes[free]
        order = (~needed[classes]).int().argsort(stable=True)
        classes, sizes = classes[order], sizes[order]
        kept[classes] = (sizes.cumsum(0) <= room) | needed[classes]
        undecided[classes] = False
    return kept


def _refusal(name: str, width: int, kept: Tensor, wiring: Wiring, graph: ChannelGraph) -> str:
    """Why a layer cannot have a width."""
    own = wiring.outputs[name]
    classes, sizes = own.unique(return_counts=True)
    for cls in classes.tolist():
        if cls in graph.pinned:
            return f"{name!r} cannot have {width} outputs of {len(own)}: {graph.pinned[cls]}"
    left = int(kept[own].sum())
    others = (other for other, theirs in wiring.outputs.items() if other != name and torch.isin(theirs, own).any())
    if (other := next(others, None)) is not None:
        return f"{name!r} is given {width} outputs, but shares them with layers such as {other!r} that leave it {left}"
    why = f"they go {int(sizes.max())} at a time" if sizes.max() > 1 else "layers read parts of them"
    return f"{name!r} cannot have {width} outputs: {why}; {left} would do"
