"""Channels as items on a market: what each is worth to the layers that read it, and costs those that put it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pcn.graph import ChannelGraph
from pcn.planner.allocation import Served
from pcn.planner.options import Option, rate
from pcn.planner.prices import taken_off
from pcn.planner.question import Question
from pcn.planner.reading import Reading
from pcn.plans.dropping import must_stay
from pcn.plans.layer_plan import FROZEN, LayerPlan
from pcn.plans.wiring import Wiring, wiring_of
from pcn.statistics import Statistics


@dataclass(frozen=True)
class Items:
    """The channel classes of a model, at the ranks that its layers were served; tensors are (class_count,)."""

    question: Question
    served: Mapping[str, Served]
    stats: Statistics
    graph: ChannelGraph

    @cached_property
    def wiring(self) -> Wiring:
        return wiring_of(self.question.plan, self.graph)

    @cached_property
    def readings(self) -> dict[str, Reading]:
        names = [name for name in self.question.names if name in self.wiring.inputs]
        return {name: Reading.of(self.question.model, self.stats, self.question.plan.layers[name]) for name in names}

    @cached_property
    def worth(self) -> Tensor:
        """What each is worth to all of its readers."""
        worth = torch.zeros(self.wiring.class_count, dtype=torch.float64)
        for name, reading in self.readings.items():
            option = self.served[name].option
            worth.index_add_(0, self.wiring.inputs[name], option.worth * reading.carried(option.rank))
        return worth

    @cached_property
    def price(self) -> Tensor:
        """What all of its producers would save without it."""
        price = torch.zeros(self.wiring.class_count, dtype=torch.float64)
        for name, classes in self.wiring.outputs.items():
            layer = self.question.plan.layers[name]
            if layer.out_features > 1:
                price.index_add_(0, classes, price.new_full((len(classes),), self._price(layer)))
        return price

    def _price(self, layer: LayerPlan) -> float:
        """The price of one output of a layer."""
        if layer.name in self.served:
            option = self.served[layer.name].option
            layer = replace(layer, rank=option.rank, output_rank=option.output_rank, kernel_rank=option.kernel_rank)
        after = self.question.prices.after
        saved = taken_off(after(layer), after(replace(layer, kept_outputs=layer.kept_outputs - 1)))
        return self.question.room.price(Option(None, None, saved))

    @cached_property
    def rates(self) -> Tensor:
        """What each is worth for its price."""
        return self.worth / self.price

    @cached_property
    def next_rate(self) -> float:
        """What the next step of rank would have bought per price; 0 where every layer has all of it."""
        steps = ((each.option, each.following) for each in self.served.values())
        price = self.question.room.price
        return max((rate(low, high, price) for low, high in steps if high is not None), default=0.0)

    @cached_property
    def cheap(self) -> Tensor:
        """The classes that may go and are worth less than ranks for their price, those first that are worth least."""
        free = torch.tensor([cls not in self.blocked for cls in range(self.wiring.class_count)])
        classes = (free & (self.price > 0) & (self.rates < self.next_rate)).nonzero().flatten()
        return classes[self.rates[classes].argsort(stable=True)]

    @cached_property
    def blocked(self) -> dict[int, str]:
        """Why classes must stay: also what layers put out, or read, that are frozen, have rules, or are but whole."""
        question, config = self.question, self.question.budget.config
        fixed = {name: why for name in question.plan.layers if (why := self._fixed(name)) is not None}
        layers = {name: replace(p, rank=None) if name in fixed else p for name, p in question.plan.layers.items()}
        found = must_stay(replace(question.plan, layers=layers), config, self.graph, self.wiring)
        own: dict[int, str] = {}
        for name, classes in self.wiring.outputs.items():
            if config.fixes(name) or question.plan.layers[name].frozen:
                own = dict.fromkeys(classes.tolist(), fixed[name]) | own
        for name, classes in self.wiring.inputs.items():
            if name in fixed:
                own = dict.fromkeys(classes.tolist(), f"{name!r} reads it, and {fixed[name]}") | own
        return {**found, **own, **self.graph.pinned}

    def _fixed(self, name: str) -> str | None:
        """Why what a layer reads must stay; None where it need not."""
        question, layer = self.question, self.question.plan.layers[name]
        if name in question.names:
            if any(option.rank is not None for option in question.offers[name]):
                return None
            beside = " reads directions" if len(question.offers[name]) > 1 else " is on offer"
            return f"no smaller form of that layer{beside}"
        if layer.frozen:
            return FROZEN
        return "a rule says what is kept there" if question.budget.config.fixes(name) else layer.reason or "it stays"

    def left(self, dropped: Tensor) -> dict[str, Tensor]:
        """The share of its worth that every reader of dropped classes keeps, by rank."""
        gone = {name: dropped[self.wiring.inputs[name]] for name in self.readings}
        return {name: reading.left(gone[name]) for name, reading in self.readings.items() if gone[name].any()}

    def notes(self, dropped: Tensor) -> dict[str, str]:
        """What to say about the layers that lose outputs."""
        found = {}
        for name, classes in self.wiring.outputs.items():
            gone, worth = dropped[classes], self.worth[classes]
            if gone.any():
                share = float(worth[gone].sum() / worth.sum().clamp_min(torch.finfo(worth.dtype).tiny))
                found[name] = f"{int(gone.sum())} of {len(gone)} outputs go, with {share:.2%} of what is read of them"
        return found
