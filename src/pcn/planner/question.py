"""What a budget leaves to decide: which layers, in which forms, at what price, and how much there is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor, nn

from pcn.errors import ConfigError
from pcn.graph import ChannelGraph
from pcn.layers import by_group, canonical_weight, unwrap
from pcn.planner.allocation import Room, Served, hand_out
from pcn.planner.floor import Steps
from pcn.planner.measured import Measured
from pcn.planner.optimizer_state import numbers_kept
from pcn.planner.options import Option, forms, output_shares, valued
from pcn.planner.prices import NOTHING, Prices, added, taken_off
from pcn.planner.values import WIDEST, check_values, directions_of
from pcn.plans.cutting import without_classes
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.making import UNCALLED, make_plan
from pcn.plans.plan import Plan
from pcn.running.example import Batches, opened
from pcn.statistics import Statistics

if TYPE_CHECKING:
    from pcn.planner.budget import Budget

Known = Mapping[str, tuple[Tensor, Tensor | None]]  # layer -> what its directions are worth, and shares of its outputs


@dataclass(frozen=True)
class Question:
    """The layers whose ranks are to be chosen, the forms that each could have, and what there is to spend.

    In the plan these layers, the ``names``, have all directions, and those with rules what they ask for.
    """

    model: nn.Module
    budget: Budget
    plan: Plan
    names: tuple[str, ...]
    prices: Prices
    frozen: tuple[str, ...] = ()  # layers that could change if they were not

    @classmethod
    def of(
        cls,
        model: nn.Module,
        stats: Statistics,
        budget: Budget,
        graph: ChannelGraph | None,
        measured: Measured | None,
    ) -> Question:
        """Ask; a budget that no ranks could meet is refused, before what they are worth is known."""
        model, config = unwrap(model), budget.config
        plain = replace(config, rank=None, output_rank=None, keep_outputs=None)
        whole = make_plan(model, stats, replace(plain, rank=1.0, skip_larger=False), graph=graph)
        ruled = make_plan(model, stats, plain, graph=graph)
        if budget.flops is not None and graph is None:
            raise ConfigError(f"a budget of FLOPs needs the model's graph: give params, or a graph; {UNCALLED}")
        free = [p for p in whole.transformed if not p.frozen and not config.fixes(p.name)]
        if graph is not None and budget.flops is not None:
            _check_counted([p for p in free if p.name in graph.reads])
        if measured is not None:
            if not isinstance(measured, Measured):
                raise ConfigError(f"measured={measured!r}: give what pcn.measure_costs(model, batch, budget) returns")
            state = None if budget.memory_mib is None else numbers_kept(budget.optimizer)
            measured.check_for(whole, [p.name for p in free], times=budget.step_ms is not None, state=state)
        # What rules drop is counted as if it stayed: whether it may go depends on the ranks that are to be chosen.
        layers = {p.name: replace(p, kept_inputs=p.in_features, kept_outputs=p.out_features) for p in free}
        plan = replace(ruled, layers={**ruled.layers, **layers})
        prices = Prices(budget.units, measured or NOTHING)
        held = tuple(p.name for p in whole.transformed if p.frozen)
        question = cls(model, budget, plan, tuple(layers), prices, held)
        question.room.check_reachable(question.offers)
        return question

    @property
    def layers(self) -> list[LayerPlan]:
        return [self.plan.layers[name] for name in self.names]

    @cached_property
    def offers(self) -> dict[str, list[Option]]:
        """The forms of every layer."""
        return {layer.name: _forms(layer, self.prices, self.budget) for layer in self.layers}

    @cached_property
    def room(self) -> Room:
        """The limits, and what is taken by all but these layers when those with rules have got what they ask for."""
        now = self.prices.now(self.model, self.plan)
        limits = {unit: limit for unit in now if (limit := self.budget.limit(unit, now[unit])) is not None}
        others = taken_off(now, added(dict.fromkeys(now, 0), *map(self.prices.before, self.layers)))
        for layer in self.plan.layers.values():
            if layer.name not in self.names and layer.changed:
                others = added(taken_off(others, self.prices.before(layer)), self.prices.after(layer))
        if "params" in others:
            others = {**others, "params": others["params"] - _cut_elsewhere(self.model, self.plan)}
        steps = Steps.of(self.budget, self.layers, self.prices, others)
        return Room(limits, others, now=now, steps=steps, frozen=self.frozen)

    def without(self, graph: ChannelGraph, dropped: Tensor) -> Question:
        """The same question where some channel classes are gone."""
        return replace(self, plan=without_classes(self.plan, graph, dropped, {}))

    def known(self, stats: Statistics, batches: Batches) -> Known:
        """What there is to know about the worth of the layers' forms."""
        worth = self.budget.worth(self.model, stats, list(self.names), opened(batches))
        check_values(worth, {layer.name: layer.in_features // layer.groups for layer in self.layers})
        return {layer.name: (worth[layer.name], self._shares(layer, stats)) for layer in self.layers}

    def answer(self, known: Known, left: Mapping[str, Tensor] | None = None) -> dict[str, Served]:
        """What every layer gets; ``left`` is the share of its worth, by rank, that layers have without lost inputs."""
        shares = left or {}
        offers = {
            name: [valued(option, *known[name], left=shares.get(name)) for option in options]
            for name, options in self.offers.items()
        }
        return hand_out(offers, self.room)

    def _shares(self, layer: LayerPlan, stats: Statistics) -> Tensor | None:
        if not _both_sides(layer, self.budget):
            return None
        _, variances, vectors = directions_of(stats, layer.name)
        weight = canonical_weight(self.model.get_submodule(layer.name)).detach().to(vectors)
        return output_shares(by_group(weight, layer.groups), variances, vectors, self.budget.rank_step)


def _both_sides(layer: LayerPlan, budget: Budget) -> bool:
    return budget.two_sided and layer.out_features // layer.groups <= WIDEST  # an eigenproblem of that size a step


def _forms(layer: LayerPlan, prices: Prices, budget: Budget) -> list[Option]:
    both = _both_sides(layer, budget)
    return list(forms(layer, budget.rank_step, prices, two_sided=both, only_smaller=budget.config.skip_larger))


def _cut_elsewhere(model: nn.Module, plan: Plan) -> int:
    """Trained parameters that go with dropped channels but belong to no layer of the plan: those of norms, say."""
    gone = 0
    for name, parameter in model.named_parameters():
        cuts = plan.slices.get(name, {})
        if cuts and parameter.requires_grad and name.rpartition(".")[0] not in plan.layers:
            left = (len(cuts[dim].kept) if dim in cuts else size for dim, size in enumerate(parameter.shape))
            gone += parameter.numel() - math.prod(left)
    return gone


def _check_counted(layers: list[LayerPlan]) -> None:
    """Raise for layers whose operations nobody can count beforehand."""
    unknown = [layer.name for layer in layers if layer.flops_before is None]
    if unknown:
        raise ConfigError(
            f"the operations of {', '.join(map(repr, unknown))} are not known, as the data says on how many rows they "
            "run: give params= in place of flops=, or exclude them from the budget's config"
        )
