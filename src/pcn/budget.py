"""Ranks for a budget: every step of rank goes to the layer where it buys most output variance per trained parameter."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pcn.config import LayerRule, PCNConfig
from pcn.errors import ConfigError, TraceError
from pcn.graph import ChannelGraph, trace
from pcn.layers import canonical_weight, unwrap
from pcn.plan import LayerPlan
from pcn.planning import make_plan
from pcn.statistics import Statistics

WIDEST = 1024  # directions that are looked at in one layer; wider inputs have little variance beyond


@dataclass(frozen=True)
class Budget:
    """How many parameters may be trained: a number, or a fraction of what the model trains now."""

    params: int | float
    step: int = 8  # ranks are handed out in steps of this, which also suits the hardware

    def __post_init__(self) -> None:
        fraction = isinstance(self.params, float) and 0 < self.params <= 1
        number = isinstance(self.params, int) and not isinstance(self.params, bool) and self.params >= 1
        if not (fraction or number):
            raise ConfigError(f"params={self.params!r}: give a number of parameters or a fraction in (0, 1]")
        if isinstance(self.step, bool) or not isinstance(self.step, int) or self.step < 1:
            raise ConfigError(f"step={self.step!r}: give a whole number of at least 1")

    def limit(self, trainable: int) -> int:
        return self.params if isinstance(self.params, int) else int(self.params * trainable)


def fit_budget(
    model: nn.Module,
    stats: Statistics,
    budget: Budget,
    config: PCNConfig | None = None,
    *,
    graph: ChannelGraph | None = None,
) -> PCNConfig:
    """Return the configuration with a rank for every layer so that the whole model trains no more than the budget.

    Which layers may change, and all options, come from ``config``; layers for which it has a rule keep to that. A
    layer to which the budget gives its full width stays as it is, and so does a frozen one.
    """
    model = unwrap(model)
    config = config or PCNConfig()
    if graph is None and stats.example is not None:
        with suppress(TraceError):
            graph = trace(model, stats.example)
    whole = make_plan(model, stats, replace(config, rank=1.0, keep_outputs=None, skip_larger=False), graph=graph)
    ruled = make_plan(model, stats, replace(config, rank=None, keep_outputs=None), graph=graph)
    frozen = {name for name in whole.layers if not any(p.requires_grad for p in model.get_submodule(name).parameters())}
    open_layers = {
        layer.name: layer for layer in whole.transformed if layer.name not in frozen and not config.mentions(layer.name)
    }
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    saved = sum(p.trainable_before - p.trainable_after for p in ruled.transformed if p.name not in frozen)
    room = budget.limit(trainable) - (trainable - saved - sum(p.trainable_before for p in open_layers.values()))
    step = -(-budget.step // config.multiple_of) * config.multiple_of  # make_plan rounds up to that multiple
    ranks = _hand_out(open_layers, {n: direction_scores(model, stats, n) for n in open_layers}, step, room)
    rules = {name: LayerRule(rank=rank) for name, rank in ranks.items()}
    return replace(config, rank=None, layers={**config.layers, **rules})


def direction_scores(model: nn.Module, stats: Statistics, layer: str) -> Tensor:
    """Return each direction's share of the output's variance, e_j ‖W u_j‖² added over groups (exact for Linear)."""
    weight = canonical_weight(model.get_submodule(layer)).detach().double()
    spectrum = stats.spectrum(layer)
    values, vectors = spectrum.leading(min(spectrum.width, WIDEST))
    grouped = weight.reshape(spectrum.groups, -1, spectrum.width, weight[0, 0].numel())
    responses = torch.einsum("gnmk,gmr->gnkr", grouped.to(vectors), vectors).square().sum((1, 2))
    scores = (values * responses).sum(0)
    return scores / scores.sum().clamp_min(torch.finfo(scores.dtype).tiny)


@dataclass(frozen=True)
class _Offer:
    """One more step of rank for a layer: what it costs and what it buys; ``rank`` None keeps the layer as it is."""

    rank: int | None
    cost: int
    gain: float


def _hand_out(layers: dict[str, LayerPlan], scores: dict[str, Tensor], step: int, room: int) -> dict[str, int | None]:
    """Start every layer at one step, then serve the best offer per parameter until nothing fits any more."""
    offers = {name: list(_offers(layer, scores[name], step)) for name, layer in layers.items()}
    ranks = {name: options[0].rank for name, options in offers.items()}
    room -= sum(options[0].cost for options in offers.values())
    if room < 0:
        raise ConfigError(f"the budget is {-room:,} parameters too small: every layer needs a rank of at least {step}")
    queue = [(-o[1].gain / o[1].cost, name, 1) for name, o in offers.items() if len(o) > 1]
    heapq.heapify(queue)
    while queue:
        _, name, number = heapq.heappop(queue)
        offer = offers[name][number]
        if offer.cost > room:
            continue
        room -= offer.cost
        ranks[name] = offer.rank
        if number + 1 < len(offers[name]):
            following = offers[name][number + 1]
            heapq.heappush(queue, (-following.gain / following.cost, name, number + 1))
    return ranks


def _offers(layer: LayerPlan, scores: Tensor, step: int) -> Iterator[_Offer]:
    """Yield steps of rank while the layer stays smaller than it is, and last its full width."""
    width = layer.in_features // layer.groups
    spent, held = 0, 0.0
    for rank in range(min(step, width), min(width, len(scores)) + 1, step):
        planned = replace(layer, rank=rank)
        if planned.stored_after >= layer.trainable_before:
            break
        gained = float(scores[:rank].sum())
        yield _Offer(rank, planned.trainable_after - spent, gained - held)
        spent, held = planned.trainable_after, gained
    yield _Offer(None, max(layer.trainable_before - spent, 1), 1.0 - held)
