"""From ranks to plain widths: the narrower architecture without bases that a plan's statistics suggest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pcn.errors import ConfigError
from pcn.graph import ChannelGraph
from pcn.planner.narrowing import first_kept, frozen_pinned
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.plans.wiring import Wiring, wiring_of

HALVINGS = 40  # of the interval in which the common factor is searched
NAMED = 3  # layers that a message names


def suggest_widths(plan: Plan, graph: ChannelGraph) -> dict[str, int]:
    """Return outputs for every layer so that a plain network of these widths trains about as much as the plan's.

    Channels that belong together get one width: in proportion to the directions that the layers which read them keep, a
    channel for each, large layers counting more, and never more than they have. Where layers share only some channels,
    small ones come first. Channels that must stay, stay, and so does all that layers with frozen weights put out or
    read; when they leave nothing of the plan's size to the others, that is an error.
    """
    wiring = wiring_of(plan, graph)
    graph = frozen_pinned(plan, graph, wiring)
    groups = _groups(plan, graph, wiring)

    def kept(counts: Sequence[int]) -> Tensor:
        return first_kept(wiring, _widths(wiring, groups, counts), graph.pinned)

    def trained(counts: Sequence[int]) -> int:
        return _trained(plan, wiring, kept(counts))

    least = [group.kept(_smallest(groups)) for group in groups]
    if trained(least) > plan.trainable_after:
        raise ConfigError(_too_small(plan, graph, wiring, groups, trained(least)))
    counts = _largest(groups, lambda counts: trained(counts) <= plan.trainable_after)
    left = kept(counts)
    return {name: int(left[classes].sum()) for name, classes in wiring.outputs.items()}


@dataclass(frozen=True)
class _Group:
    """Channel classes that share a width, and the share of it that their readers want."""

    classes: Tensor
    share: float

    def kept(self, factor: float) -> int:
        """How many of its channels are kept when every wish is multiplied by a factor."""
        return min(round(factor * self.share * len(self.classes)), len(self.classes))


def _smallest(groups: Sequence[_Group]) -> float:
    """The factor above which every group keeps a channel, and no single one where the plan keeps more directions."""
    wishes = [group.share * len(group.classes) for group in groups]
    return max(((0.501 if wish < 1.5 else 1.501) / wish for wish in wishes), default=0.0)


def _largest(groups: Sequence[_Group], fits: Callable[[Sequence[int]], bool]) -> list[int]:
    """The most channels of the groups that fit: all in proportion, then one more wherever that fits too."""
    low, high = _smallest(groups), 1.0 / min((group.share for group in groups), default=1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if fits([group.kept(middle) for group in groups]):
            low = middle
        else:
            high = middle
    counts = [group.kept(low) for group in groups]
    for index, group in enumerate(groups):
        more = [*counts[:index], counts[index] + 1, *counts[index + 1 :]]
        if more[index] <= len(group.classes) and fits(more):
            counts = more
    return counts


def _too_small(plan: Plan, graph: ChannelGraph, wiring: Wiring, groups: Sequence[_Group], least: int) -> str:
    """Say which channels leave nothing to the others, and which size would do."""
    fixed = torch.ones(graph.class_count, dtype=torch.bool)
    for group in groups:
        fixed[group.classes] = False
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


def _groups(plan: Plan, graph: ChannelGraph, wiring: Wiring) -> list[_Group]:
    wished, weights = torch.zeros(2, graph.class_count, dtype=torch.float64)
    for name, classes in wiring.inputs.items():
        layer, read = plan.layers[name], classes.unique()
        wished[read] += _share(layer, wiring.channels_read(name)) * layer.size_before
        weights[read] += layer.size_before
    found: list[_Group] = []
    for members in wiring.coupled():
        classes = torch.tensor(sorted(members))
        if members.isdisjoint(graph.pinned) and bool((weights[classes] > 0).all()):
            found.append(_Group(classes, float((wished[classes] / weights[classes]).mean())))
    return found


def _share(layer: LayerPlan, channels: int) -> float:
    """The share that a layer asks for of the channels that it reads: one for each direction, up to all that are left.

    Where a channel is read at many positions, as behind a flatten, a plan does not say in how many a direction lies. As
    few as one could hold a direction for every position, and a single direction could lie in all.
    """
    if layer.rank is None:
        return 1.0
    left = channels * layer.kept_inputs / layer.in_features
    return min(layer.rank * layer.groups, left) / channels


def _widths(wiring: Wiring, groups: Sequence[_Group], counts: Sequence[int]) -> dict[str, int]:
    """For every layer as much of its width as is kept of its group; all where it is in none."""
    shares = torch.ones(wiring.class_count, dtype=torch.float64)
    for group, count in zip(groups, counts, strict=True):
        shares[group.classes] = count / len(group.classes)
    return {name: round(float(shares[classes].sum())) for name, classes in wiring.outputs.items()}


def _trained(plan: Plan, wiring: Wiring, kept: Tensor) -> int:
    """What all layers would train as plain ones."""
    return sum(_plain(layer, wiring, kept) for layer in plan.layers.values())


def _plain(layer: LayerPlan, wiring: Wiring, kept: Tensor) -> int:
    out, inp = wiring.outputs.get(layer.name), wiring.inputs.get(layer.name)
    outputs = layer.out_features if out is None else int(kept[out].sum())
    inputs = layer.in_features if inp is None else int(kept[inp].sum())
    weights = (not layer.frozen) * (inputs // layer.groups) * layer.taps
    return outputs * (weights + (layer.bias and layer.trains_bias))
