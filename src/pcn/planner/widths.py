"""From ranks to plain widths: the narrower architecture without bases that a plan's statistics suggest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from pcn.config import check_count
from pcn.errors import ConfigError
from pcn.graph import ChannelGraph
from pcn.planner.narrowing import first_kept, frozen_pinned
from pcn.planner.proportion import Group, fewest, in_proportion
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.plans.wiring import Wiring, wiring_of

ENOUGH = 0.98  # of the plan's size; below it, what steps leave is handed out in finer ones
NAMED = 3  # layers that a message names


def suggest_widths(plan: Plan, graph: ChannelGraph, step: int) -> dict[str, int]:
    """Return outputs for every layer so that a plain network of these widths trains about as much as the plan's.

    Channels that belong together get one width: in proportion to the directions that the layers which read them keep, a
    channel for each, large layers counting more, and never more than they have. Where layers share only some channels,
    small ones come first. Widths are multiples of ``step`` where they hold two of them and the size can be met so, and
    the model's last layer reads at least as many channels as it has outputs (see :func:`in_proportion`). Channels that
    must stay, stay, and so does all that layers with frozen weights put out or read; when they leave nothing of the
    plan's size to the others, that is an error.
    """
    check_count("step", step)
    wiring = wiring_of(plan, graph)
    graph = frozen_pinned(plan, graph, wiring)
    shared = _shared(plan, graph, wiring, step)
    groups = [each.group for each in shared]

    def kept(counts: Sequence[int]) -> Tensor:
        return first_kept(wiring, _widths(wiring, shared, counts), graph.pinned)

    @cache  # many factors give the same numbers
    def trained_by(counts: tuple[int, ...]) -> int:
        return _trained(plan, wiring, kept(counts))

    def trained(counts: Sequence[int]) -> int:
        return trained_by(tuple(counts))

    least = trained(fewest(groups))
    if least > plan.trainable_after:
        raise ConfigError(_too_small(plan, graph, wiring, shared, least))
    left = kept(in_proportion(groups, trained, plan.trainable_after, enough=ENOUGH * plan.trainable_after))
    return {name: int(left[classes].sum()) for name, classes in wiring.outputs.items()}


@dataclass(frozen=True)
class _Shared:
    """Channel classes that share a width, and how many of them are asked for."""

    classes: Tensor
    group: Group


def _too_small(plan: Plan, graph: ChannelGraph, wiring: Wiring, shared: Sequence[_Shared], least: int) -> str:
    """Say which channels leave nothing to the others, and which size would do."""
    fixed = torch.ones(graph.class_count, dtype=torch.bool)
    for each in shared:
        fixed[each.classes] = False
    taken = {name: _plain(plan.layers[name], wiring, fixed) for name in wiring.outputs}
    held = [name for name in sorted(taken, key=lambda name: -taken[name]) if fixed[wiring.outputs[name]].any()]
    why = (f"{name!r} ({_reason(graph, wiring.outputs[name])})" for name in held[:NAMED])
    return (
        f"a plain network cannot be as small as this plan, which trains {plan.trainable_after:,}: channels that must "
        f"stay take {_trained(plan, wiring, fixed):,}, most of them in {', '.join(why)}, and with the others in "
        f"proportion it is at least {least:,}: give the plan as much, by a larger budget or higher ranks"
    )


def _reason(graph: ChannelGraph, classes: Tensor) -> str:
    return next((graph.pinned[cls] for cls in classes.tolist() if cls in graph.pinned), "no layer reads them")


def _shared(plan: Plan, graph: ChannelGraph, wiring: Wiring, step: int) -> list[_Shared]:
    wished, weights, least = torch.zeros(3, graph.class_count, dtype=torch.float64)
    last = _last_layers(graph, wiring)
    for name, classes in wiring.inputs.items():
        layer, read = plan.layers[name], classes.unique()
        wished[read] += _share(layer, wiring.channels_read(name)) * layer.size_before
        weights[read] += layer.size_before
        if name in last and len(wiring.outputs[name]) <= len(classes):
            least[read] = least[read].clamp(min=len(wiring.outputs[name]) / len(classes))
    found: list[_Shared] = []
    for members in wiring.coupled():
        classes = torch.tensor(sorted(members))
        if members.isdisjoint(graph.pinned) and bool((weights[classes] > 0).all()):
            together = max(wiring.sizes[cls] for cls in members)  # channels of a layer that go at once
            group = Group(
                channels=len(classes),
                share=float((wished[classes] / weights[classes]).mean()),
                least=math.ceil(len(classes) * float(least[classes].max())),
                step=step // math.gcd(step, together),
            )
            found.append(_Shared(classes, group))
    return found


def _last_layers(graph: ChannelGraph, wiring: Wiring) -> set[str]:
    """The layers whose outputs are the model's, and that no layer reads: classifiers, as far as a graph can tell."""
    read = {cls for classes in wiring.inputs.values() for cls in classes.tolist()}
    ends = graph.visible - read
    return {name for name, classes in wiring.outputs.items() if ends.issuperset(classes.tolist())}


def _share(layer: LayerPlan, channels: int) -> float:
    """The share that a layer asks for of the channels that it reads: one for each direction, up to all that are left.

    Where a channel is read at many positions, as behind a flatten, a plan does not say in how many a direction lies. As
    few as one could hold a direction for every position, and a single direction could lie in all.
    """
    if layer.rank is None:
        return 1.0
    left = channels * layer.kept_inputs / layer.in_features
    return min(layer.rank * layer.groups, left) / channels


def _widths(wiring: Wiring, shared: Sequence[_Shared], counts: Sequence[int]) -> dict[str, int]:
    """For every layer as much of its width as is kept of its group; all where it is in none."""
    shares = torch.ones(wiring.class_count, dtype=torch.float64)
    for each, count in zip(shared, counts, strict=True):
        shares[each.classes] = count / len(each.classes)
    return {name: round(float(shares[classes].sum())) for name, classes in wiring.outputs.items()}


def _trained(plan: Plan, wiring: Wiring, kept: Tensor) -> int:
    """What all layers would train as plain ones."""
    return sum(_plain(layer, wiring, kept) for layer in plan.layers.values())


def _plain(layer: LayerPlan, wiring: Wiring, kept: Tensor) -> int:
    out, inp = wiring.outputs.get(layer.name), wiring.inputs.get(layer.name)
    outputs = layer.out_features if out is None else int(kept[out].sum())
    inputs = layer.in_features if inp is None else int(kept[inp].sum())
    weights = (not layer.frozen and not layer.tied) * (inputs // layer.groups) * layer.taps
    return outputs * (weights + (layer.bias and layer.trains_bias))
