"""What a budget leaves to decide: which layers, in which forms, at what price, and how much there is."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor, nn

from pcn.config import PCNConfig
from pcn.costs.count import stored
from pcn.errors import ConfigError
from pcn.graph import ChannelGraph
from pcn.layers import by_group, canonical_weight, transformable_layers, unwrap
from pcn.planner.allocation import Room, Served, check_some_fit, fits, hand_out
from pcn.planner.least import Steps, is_narrow, on_both_sides
from pcn.planner.measured import Measured
from pcn.planner.optimizer_state import numbers_kept
from pcn.planner.options import Option, forms, output_shares
from pcn.planner.prices import NOTHING, Prices, added, operations, taken_off
from pcn.planner.response import Response
from pcn.planner.tap_shares import tap_shares, tried_patterns
from pcn.planner.units import Costs
from pcn.planner.unmoved import unmoved
from pcn.planner.valued import Value
from pcn.planner.values import Values, Worth, check_values, eigenpairs_of
from pcn.plans.cutting import without_classes
from pcn.plans.dropping import plan_outputs
from pcn.plans.keep import Request
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.making import UNCALLED, make_plan
from pcn.plans.plan import Plan
from pcn.rewriting.taps import TapMoments
from pcn.running.example import Batches, Example, opened
from pcn.statistics import Statistics
from pcn.tables import shorten

if TYPE_CHECKING:
    from pcn.planner.budget import Budget

Known = Mapping[str, Value]  # by layer


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
    allow_costlier: bool = False  # whether forms that take more time, or memory, than the layer now are on offer too
    untold: Mapping[str, str] = field(default_factory=dict)  # layers of whose taps nothing is known, so that all train

    @classmethod
    def of(
        cls,
        model: nn.Module,
        stats: Statistics,
        budget: Budget,
        graph: ChannelGraph | None,
        measured: Measured | None,
        example: Example | None = None,
        untold: Mapping[str, str] | None = None,
    ) -> Question:
        """Ask; a budget that no ranks could meet is refused, before what they are worth is known.

        No layer gets slower, or takes more memory, in a budget of that, unless its other limits can be met in no other
        way.
        """
        model, config, example = unwrap(model), budget.config, example or stats.example
        names = {name for name, _, _ in transformable_layers(model)}
        named = {name: rule for name, rule in config.layers.items() if name in names}
        sure = {**_without_drops(config).layers, **named}  # what is asked of a layer by name happens, or is refused
        widest = replace(config, rank=1.0, skip_larger=False, layers=sure)
        whole = make_plan(model, stats, widest, graph=graph, example=example)
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
        ruled = _ruled(model, stats, config, graph, example, [p for p in free if p.kept_inputs != p.in_features])
        left = {p.name: ruled.layers[p.name] for p in free}
        layers = {
            p.name: replace(p, kept_inputs=left[p.name].kept_inputs, kept_outputs=left[p.name].kept_outputs)
            for p in free
        }
        plan = replace(ruled, layers={**ruled.layers, **layers})
        prices = Prices(budget.units, measured or NOTHING, None if budget.flops is None else operations(model, example))
        held = tuple(p.name for p in whole.transformed if p.frozen and not config.fixes(p.name))
        question = cls(model, budget, plan, tuple(layers), prices, held, untold=untold or {})
        if measured is not None and not fits(question.offers, question.room):
            question = replace(question, allow_costlier=True)
        check_some_fit(question.offers, question.room)
        return question

    @property
    def layers(self) -> list[LayerPlan]:
        return [self.plan.layers[name] for name in self.names]

    @cached_property
    def offers(self) -> dict[str, list[Option]]:
        """The forms of every layer that it may have."""
        return {layer.name: self._offered(layer) for layer in self.layers}

    def _offered(self, layer: LayerPlan) -> list[Option]:
        found = self.forms(layer, only_smaller=self.budget.config.skip_larger, allow_costlier=self.allow_costlier)
        if found or self.budget.drop_channels:
            return found
        # Where a rule by name takes inputs away, the layer has to have some basis.
        return self.forms(layer, only_smaller=False, allow_costlier=True)

    def forms(self, layer: LayerPlan, *, only_smaller: bool, allow_costlier: bool) -> list[Option]:
        """The forms that a layer could have, also those that are not on offer."""
        step, floor, patterns = self.budget.rank_step, self.budget.floor, self._patterns(layer)
        how = {"only_smaller": only_smaller, "allow_costlier": allow_costlier}
        both = on_both_sides(layer, self.budget)
        return list(forms(layer, step, self.prices, two_sided=both, floor=floor, patterns=patterns, **how))

    def _patterns(self, layer: LayerPlan) -> tuple[int | None, ...]:
        """The numbers of patterns of taps that a layer could have; None is every tap."""
        return (None,) if layer.name in self.untold else tried_patterns(layer, self.budget)

    @cached_property
    def room(self) -> Room:
        """The limits, and what is taken by all but these layers when those with rules have got what they ask for."""
        now = self.prices.now(self.model, self.plan)
        limits = {unit: limit for unit in now if (limit := self.budget.limit(unit, now[unit])) is not None}
        others = taken_off(now, added(dict.fromkeys(now, 0), *map(self.prices.before, self.layers)))
        for layer in self.plan.layers.values():
            if layer.name not in self.names and layer.changed:
                others = added(taken_off(others, self.prices.before(layer)), self.prices.after(layer))
        others = taken_off(others, {**dict.fromkeys(others, 0), **cut_elsewhere(self.model, self.plan, others)})
        sure = replace(self.budget, patterns=False) if self.untold else self.budget  # what is advised can be had
        steps = Steps.of(sure, self.layers, self.prices, others)
        changing = [layer.name for layer in self.layers if is_narrow(layer, sure) or len(self.offers[layer.name]) > 1]
        taps = self._taps()
        kept = {unit: said + taps for unit, said in unmoved(self.model, self.plan, self.budget, changing, now).items()}
        return Room(limits, others, now=now, steps=steps, frozen=self.frozen, kept=kept)

    def _taps(self) -> str:
        """Say of which layers every tap is trained although the budget chooses patterns, with the first's reason."""
        own = [name for name in self.names if name in self.untold]
        return f"; {shorten(own)}: {self.untold[own[0]]}" if own else ""

    def without(self, graph: ChannelGraph, dropped: Tensor) -> Question:
        """The same question where some channel classes are gone."""
        return replace(self, plan=without_classes(self.plan, graph, dropped, {}))

    def known(self, stats: Statistics, batches: Batches, taps: TapMoments | None = None) -> Known:
        """What there is to know about the worth of the layers' forms; ``taps`` may have been looked at already."""
        wish = self.budget.worth
        assert wish is not None  # of a budget that is settled
        worth = self._worth(wish, stats, batches)
        by_size, beside = (getattr(wish, name, False) for name in ("by_size", "beside_response"))
        own = self._worth(Response(), stats, batches) if by_size else worth
        choosing = [layer for layer in self.layers if len(self._patterns(layer)) > 1]
        patterns = tap_shares(self.model, stats, choosing, self.budget.rank_step, taps)
        if by_size or isinstance(wish, Response):  # here it is known how the taps go together
            own = {**own, **{name: shares[:, -1] for name, shares in patterns.items()}}
        return {
            layer.name: Value(
                own[layer.name],
                self._shares(layer, stats),
                patterns.get(layer.name),
                worth[layer.name] if by_size else None,
                beside,
            )
            for layer in self.layers
        }

    def _worth(self, worth: Worth, stats: Statistics, batches: Batches) -> Values:
        found = worth(self.model, stats, list(self.names), opened(batches))
        check_values(found, {layer.name: layer.in_features // layer.groups for layer in self.layers})
        return found

    def answer(self, known: Known, left: Mapping[str, Tensor] | None = None) -> dict[str, Served]:
        """What every layer gets; ``left`` is the share of its worth, by rank, that layers have without lost inputs."""
        shares = left or {}
        offers = {
            name: known[name].of(options, self.room.price, shares.get(name)) for name, options in self.offers.items()
        }
        return hand_out(offers, self.room)

    def _shares(self, layer: LayerPlan, stats: Statistics) -> Tensor | None:
        if not on_both_sides(layer, self.budget):
            return None
        _, variances, vectors = eigenpairs_of(stats, layer.name)
        weight = canonical_weight(self.model.get_submodule(layer.name)).detach().to(vectors)
        return output_shares(by_group(weight, layer.groups), variances, vectors, self.budget.rank_step)


def _without_drops(config: PCNConfig) -> PCNConfig:
    """The rules of a configuration, without what they say about channels; layers without one stay as they are."""
    layers = {pattern: replace(rule, keep_outputs=None) for pattern, rule in config.layers.items()}
    return replace(config, rank=None, layers=layers)


def _ruled(
    model: nn.Module,
    stats: Statistics,
    config: PCNConfig,
    graph: ChannelGraph | None,
    example: Example | None,
    readers: list[LayerPlan],
) -> Plan:
    """What rules ask for, where it is sure to happen.

    Layers without a rule may stay whole, and all that they read stays with them, but for the ``readers``, which lose
    inputs whatever is chosen for them.
    """
    plan = make_plan(model, stats, _without_drops(config), graph=graph, example=example)
    wishes = {name: config.rule_for(name)[0].keep_outputs for name in plan.layers if config.excludes(name) is None}
    requests = [Request(name, keep, exact=False) for name, keep in wishes.items() if keep is not None]
    if not requests or graph is None or example is None:
        return plan
    plan = replace(plan, layers={**plan.layers, **{reader.name: reader for reader in readers}})
    return plan_outputs(plan, model, stats, config, requests, graph, example)


def cut_elsewhere(model: nn.Module, plan: Plan, units: Container[str]) -> Costs:
    """What goes with dropped channels but belongs to no layer of the plan: parameters and statistics of norms, say."""
    gone = {"params": 0, "stored": 0}
    for name, tensor in stored(model):
        cuts = plan.slices.get(name, {})
        if cuts and name.rpartition(".")[0] not in plan.layers:
            left = (len(cuts[dim].kept) if dim in cuts else size for dim, size in enumerate(tensor.shape))
            less = tensor.numel() - math.prod(left)
            gone["stored"] += less
            gone["params"] += less if isinstance(tensor, nn.Parameter) and tensor.requires_grad else 0
    return {unit: amount for unit, amount in gone.items() if unit in units}


def _check_counted(layers: list[LayerPlan]) -> None:
    """Raise for layers whose operations nobody can count beforehand."""
    unknown = [layer.name for layer in layers if layer.flops_before is None]
    if unknown:
        raise ConfigError(
            f"the operations of {', '.join(map(repr, unknown))} are not known, as the data says on how many rows they "
            "run: give params= in place of flops=, or exclude them from the budget's config"
        )
