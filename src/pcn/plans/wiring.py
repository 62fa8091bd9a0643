"""Which channel classes the layers of a plan put out and read, and which of them belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pcn.errors import PlanError
from pcn.graph import ChannelGraph, check_graph
from pcn.layers import LAYER_TYPES
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan


@dataclass(frozen=True)
class Wiring:
    """Which channel classes each layer puts out and reads, index by index."""

    outputs: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    class_count: int

    @cached_property
    def families(self) -> list[set[int]]:
        """The channels that a layer puts out, or reads, small sets first: of each such set one must stay."""
        sets = {frozenset(classes.tolist()) for side in (self.outputs, self.inputs) for classes in side.values()}
        return [set(family) for family in sorted(sets, key=lambda family: (len(family), sorted(family)))]

    @cached_property
    def sizes(self) -> Counter[int]:
        """How many channels each class has in the layer that puts out most of them."""
        sizes: Counter[int] = Counter()
        for classes in self.outputs.values():
            sizes |= Counter(classes.tolist())
        return sizes

    def channels_read(self, layer: str) -> int:
        """How many channels a layer reads, each counted once that stands at many positions of a flattened input."""
        read = Counter(self.inputs[layer].tolist())
        return sum(min(count, self.sizes.get(cls, count)) for cls, count in read.items())

    def coupled(self, layers: Iterable[str] | None = None) -> list[set[int]]:
        """The sets of classes that layers, or only some of them, put out, those that overlap taken together."""
        sets: list[set[int]] = []
        for name in self.outputs if layers is None else layers:
            own = set(self.outputs[name].tolist())
            apart = [other for other in sets if own.isdisjoint(other)]
            sets = [*apart, own.union(*(other for other in sets if not own.isdisjoint(other)))]
        return sets

    def losing(self, dropped: Tensor, layers: Iterable[str] | None = None) -> list[Tensor]:
        """Masks over all classes, one of each coupled set that loses some."""
        none = torch.zeros_like(dropped)
        masks = [none.index_fill(0, torch.tensor(sorted(members)), True) for members in self.coupled(layers)]
        return [mask for mask in masks if (mask & dropped).any()]


def wiring_of(plan: Plan, graph: ChannelGraph) -> Wiring:
    """Which channel classes every layer of a plan puts out and reads."""
    check_graph(graph)
    outputs, inputs = {}, {}
    for name, layer in plan.layers.items():
        classes = graph.tensors.get(f"{name}.weight")
        if classes is None:
            continue
        kind = LAYER_TYPES[layer.kind]
        _check_before(layer, graph, (len(classes[kind.in_dim]) * layer.groups, len(classes[kind.out_dim])))
        outputs[name] = classes[kind.out_dim]
        if not layer.depthwise:
            inputs[name] = classes[kind.in_dim].repeat(layer.groups)
    return Wiring(outputs, inputs, graph.class_count)


def _check_before(layer: LayerPlan, graph: ChannelGraph, sizes: tuple[int, int]) -> None:
    """Raise unless a layer is in the graph with the (inputs, outputs) that it had before the plan, and no basis yet."""
    bases = (f"{layer.name}.{side}" for side in ("basis", "output_basis"))
    transformed = layer.transformed and any(basis in graph.tensors for basis in bases)
    planned = (layer.in_features, layer.out_features)
    if transformed or sizes != planned:
        found = "has a basis" if transformed else f"has (inputs, outputs) {sizes}, in the plan {planned}"
        raise PlanError(
            f"{layer.name!r} {found}: the graph is of a transformed model, or of another; trace the model as it was "
            "before the plan was applied, newly built say"
        )
