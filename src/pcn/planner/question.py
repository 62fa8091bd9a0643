"""What a budget leaves to decide: which layers, in which forms, at what price, and how much there is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from pcn.errors import ConfigError
from pcn.example import Batches, opened
from pcn.graph import ChannelGraph
from pcn.layers import by_group, canonical_weight, unwrap
from pcn.plan import LayerPlan, Plan
from pcn.planner.allocation import Room, Served, hand_out
from pcn.planner.measured import Measured
from pcn.planner.options import Option, forms, output_shares, valued
from pcn.planner.prices import NOTHING, Prices, added, taken_off
from pcn.planner.values import WIDEST, check_values, directions_of
from pcn.planning import make_plan
from pcn.statistics import Statistics

if TYPE_CHECKING:
    from pcn.budget import Budget


@dataclass(frozen=True)
class Question:
    """The layers whose ranks are to be chosen, the forms that each could have, and what there is to spend."""

    model: nn.Module
    budget: Budget
    layers: list[LayerPlan]
    offers: dict[str, list[Option]]
    room: Room
    prices: Prices

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
            raise ConfigError("a budget of FLOPs needs the model's graph, which could not be traced: give params")
        if measured is not None:
            measured.check_for(whole, times=budget.step_ms is not None)
        frozen = {name for name in whole.layers if not canonical_weight(model.get_submodule(name)).requires_grad}
        layers = [p for p in whole.transformed if p.name not in frozen and not config.mentions(p.name)]
        prices = Prices(budget.units, measured or NOTHING, frozenset(frozen))
        offers = {p.name: _forms(p, prices, budget) for p in layers}
        room = _room(prices, model, budget, ruled, layers)
        room.check_reachable(offers)
        return cls(model, budget, layers, offers, room, prices)

    def answer(self, stats: Statistics, batches: Batches) -> dict[str, Served]:
        """What every layer gets."""
        worth = self.budget.worth(self.model, stats, list(self.offers), opened(batches))
        check_values(worth, {layer.name: layer.in_features // layer.groups for layer in self.layers})
        valued_offers = {
            layer.name: [valued(option, worth[layer.name], shares) for option in self.offers[layer.name]]
            for layer in self.layers
            for shares in [self._shares(layer, stats)]
        }
        return hand_out(valued_offers, self.room)

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


def _room(prices: Prices, model: nn.Module, budget: Budget, ruled: Plan, layers: list[LayerPlan]) -> Room:
    """The limits, and what is taken by all but the open layers when those with rules have got what they ask for."""
    now = prices.now(model, ruled)
    limits = {unit: limit for unit in now if (limit := budget.limit(unit, now[unit])) is not None}
    others = taken_off(now, added(dict.fromkeys(now, 0), *(prices.before(layer) for layer in layers)))
    taken = {layer.name for layer in layers}
    for layer in ruled.layers.values():
        if layer.name not in taken and layer.changed:
            others = added(taken_off(others, prices.before(layer)), prices.after(layer))
    return Room(limits, others)
