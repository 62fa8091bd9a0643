"""Ranks for a budget: every step of rank goes to the layer where it is worth most for what it costs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from pcn.config import LayerRule, PCNConfig
from pcn.errors import ConfigError, TraceError
from pcn.example import Batches, opened
from pcn.graph import ChannelGraph, trace
from pcn.layers import by_group, canonical_weight, unwrap
from pcn.plan import LayerPlan, Plan
from pcn.planner.allocation import Room, Served, hand_out
from pcn.planner.options import Option, forms, output_shares
from pcn.planner.response import Response
from pcn.planner.values import WIDEST, Worth, check_values, directions_of
from pcn.planning import make_plan
from pcn.statistics import Statistics


@dataclass(frozen=True)
class Budget:
    """What the whole model may cost: a number, or a fraction of what it costs now; at least one of them is given.

    So 1.0 is all that it takes now, and 1 is one. ``params`` counts trained parameters, ``flops`` the operations of
    linear and convolutional layers per sample. Which layers may change, and all options, come from ``config``; layers
    for which it has a rule keep to that.

    >>> Budget(params=0.25, config=PCNConfig(exclude=["head"])).limit("params", 4_000_000)
    1000000
    """

    params: int | float | None = None
    flops: int | float | None = None
    step: int = 8  # ranks are handed out in steps of this, which also suits the hardware
    worth: Worth = field(default_factory=Response)  # what the directions of a layer are worth
    two_sided: bool = False  # choose the number of trained outputs of each layer as well
    config: PCNConfig = field(default_factory=PCNConfig)

    def __post_init__(self) -> None:
        for name in ("params", "flops"):
            value = getattr(self, name)
            fraction = isinstance(value, float) and 0 < value <= 1
            number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not (value is None or fraction or number):
                raise ConfigError(f"{name}={value!r}: give a number of them, or a fraction in (0, 1]")
        if self.params is None and self.flops is None:
            raise ConfigError("a budget needs params or flops, as in Budget(params=0.25)")
        if isinstance(self.step, bool) or not isinstance(self.step, int) or self.step < 1:
            raise ConfigError(f"step={self.step!r}: give a whole number of at least 1")
        if not isinstance(self.config, PCNConfig):
            raise ConfigError(f"config={self.config!r}: give a PCNConfig")
        for name in ("keep_outputs", "output_rank"):
            if getattr(self.config, name) is not None:
                raise ConfigError(
                    f"{name}={getattr(self.config, name)!r} beside a budget, which chooses for every layer: "
                    "give it in a rule for the layers that are meant (two_sided=True chooses output ranks)"
                )
        if isinstance(self.worth, type) or not isinstance(self.worth, Worth):
            raise ConfigError(f"worth={self.worth!r}: give Response(), Taylor(...), Divergence(...) or one of your own")

    def limit(self, name: str, now: int) -> int | None:
        """What may be spent of something of which the model takes so much now; None for any amount."""
        value: int | float | None = getattr(self, name)
        return int(value * now) if isinstance(value, float) else value


def as_budget(
    config: PCNConfig | Budget | None, *, params: int | float | None = None, flops: int | float | None = None
) -> Budget | None:
    """The budget that is asked for, given whole or by its numbers, or None where only a configuration is."""
    if isinstance(config, Budget):
        if params is not None or flops is not None:
            raise ConfigError("a Budget is given whole: put params and flops into it")
        return config
    if config is not None and not isinstance(config, PCNConfig):
        raise ConfigError(f"config={config!r}: give a PCNConfig, or a Budget such as Budget(params=0.25)")
    if params is None and flops is None:
        return None
    return Budget(params, flops, config=config or PCNConfig())


def check_reachable(model: nn.Module, budget: Budget) -> None:
    """Raise before anything was measured when every layer at its lowest rank would still train too much."""
    model, config = unwrap(model), budget.config
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    limit = budget.limit("params", trainable)
    if limit is None:
        return
    whole = make_plan(model, None, PCNConfig(rank=1.0, skip_larger=False, exclude=config.exclude))
    least = trainable - sum(max(0, p.trainable_before - _lowest(p, budget)) for p in whole.transformed)
    if least > limit:
        raise ConfigError(
            f"the budget is {limit:,} parameters, but {least:,} of the model's {trainable:,} would be left with every "
            "layer at its lowest rank: give a larger one, or exclude fewer layers"
        )


def _lowest(layer: LayerPlan, budget: Budget) -> int:
    """The fewest parameters that a layer could train; one with a rule of its own could be asked for any rank."""
    step = 1 if budget.config.mentions(layer.name) else budget.step
    lowest = replace(layer, rank=min(step, layer.in_features // layer.groups))
    outputs = min(budget.step, layer.out_features // layer.groups)
    both = replace(lowest, output_rank=outputs if budget.two_sided else None)
    return min(lowest.trainable_after, both.trainable_after)


def fit_budget(
    model: nn.Module,
    stats: Statistics,
    budget: Budget,
    *,
    batches: Batches = (),
    graph: ChannelGraph | None = None,
) -> PCNConfig:
    """Return the configuration with ranks for every layer so that the whole model stays within the budget.

    A layer to which the budget gives its full width stays as it is, and so does a frozen one. ``batches`` are needed
    where the worth is measured on them.
    """
    return _as_config(budget, _serve(model, stats, budget, batches, graph))


def plan_within(
    model: nn.Module,
    stats: Statistics,
    budget: Budget,
    *,
    batches: Batches = (),
    graph: ChannelGraph | None = None,
    example: Any = None,
) -> Plan:
    """Make the plan for a budget; the note of every layer says what more rank would have bought."""
    graph = graph or _traced(model, stats)
    served = _serve(model, stats, budget, batches, graph)
    plan = make_plan(model, stats, _as_config(budget, served), graph=graph, example=example)
    explained = {name: _explained(plan.layers[name], each, budget) for name, each in served.items()}
    for name in _frozen(unwrap(model), plan):
        explained[name] = replace(plan.layers[name], reason=plan.layers[name].reason and "its weight is frozen")
    return replace(plan, layers={**plan.layers, **explained})


def _as_config(budget: Budget, served: dict[str, Served]) -> PCNConfig:
    rules = {
        name: LayerRule(rank=each.option.rank, output_rank=each.option.output_rank) for name, each in served.items()
    }
    return replace(budget.config, rank=None, output_rank=None, layers={**budget.config.layers, **rules})


def _traced(model: nn.Module, stats: Statistics) -> ChannelGraph | None:
    with suppress(TraceError):
        return None if stats.example is None else trace(unwrap(model), stats.example)
    return None


def _serve(
    model: nn.Module, stats: Statistics, budget: Budget, batches: Batches, graph: ChannelGraph | None
) -> dict[str, Served]:
    model, config = unwrap(model), budget.config
    graph = graph or _traced(model, stats)
    whole = make_plan(
        model, stats, replace(config, rank=1.0, output_rank=None, keep_outputs=None, skip_larger=False), graph=graph
    )
    ruled = make_plan(model, stats, replace(config, rank=None, output_rank=None, keep_outputs=None), graph=graph)
    frozen = _frozen(model, whole)
    layers = [p for p in whole.transformed if p.name not in frozen and not config.mentions(p.name)]
    if budget.flops is not None and graph is None:
        raise ConfigError("a budget of FLOPs needs the model's graph, which could not be traced: give params")
    room = _room(model, budget, ruled, layers, frozen)
    worth = budget.worth(model, stats, [layer.name for layer in layers], opened(batches))
    check_values(worth, {layer.name: layer.in_features // layer.groups for layer in layers})
    step = -(-budget.step // config.multiple_of) * config.multiple_of  # make_plan rounds up to that multiple
    return hand_out({p.name: _options(p, model, stats, worth[p.name], step, budget) for p in layers}, room)


def _frozen(model: nn.Module, plan: Plan) -> set[str]:
    """The layers that neither spend nor save."""
    return {name for name in plan.layers if not canonical_weight(model.get_submodule(name)).requires_grad}


def _room(model: nn.Module, budget: Budget, ruled: Plan, layers: list[LayerPlan], frozen: set[str]) -> Room:
    """What is left for the open layers when all the others have got what they cost."""
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    saved = sum(p.trainable_before - p.trainable_after for p in ruled.transformed if p.name not in frozen)
    others = trainable - saved - sum(layer.trainable_before for layer in layers)
    params = budget.limit("params", trainable)
    flops = budget.limit("flops", sum(layer.flops_before or 0 for layer in ruled.layers.values()))
    taken = {layer.name for layer in layers}
    spent = sum(layer.flops_after or 0 for layer in ruled.layers.values() if layer.name not in taken)
    return Room(None if params is None else params - others, None if flops is None else flops - spent)


def _options(
    layer: LayerPlan, model: nn.Module, stats: Statistics, worth: Tensor, step: int, budget: Budget
) -> list[Option]:
    shares = None
    if budget.two_sided and layer.out_features // layer.groups <= WIDEST:  # an eigenproblem of that size for each step
        _, variances, vectors = directions_of(stats, layer.name)
        weight = by_group(canonical_weight(model.get_submodule(layer.name)).detach().to(vectors), layer.groups)
        shares = output_shares(weight, variances, vectors, step)
    return list(forms(layer, worth, step, shares, only_smaller=budget.config.skip_larger))


def _explained(layer: LayerPlan, served: Served, budget: Budget) -> LayerPlan:
    """A layer's plan with what the next step would have bought, or why it stays whole."""
    if layer.rank is None:
        why = "the budget keeps it whole" if served.choices > 1 else "no form of it would be smaller and no slower"
        return replace(layer, reason=why)
    following = _next(served.option, served.following, budget)
    return replace(layer, note="; ".join(filter(None, (layer.note, following))) or None)


def _next(option: Option, following: Option | None, budget: Budget) -> str | None:
    if following is None:
        return None
    what = "all of it" if following.rank is None else f"rank {following.rank}"
    if following.output_rank is not None:
        what += f" with {following.output_rank} trained outputs"
    gained = (following.worth - option.worth) / following.worth
    costs = {"parameters": (budget.params, following.params - option.params)}
    costs |= {"FLOPs": (budget.flops, following.flops - option.flops)}
    price = " and ".join(f"{cost:,} {unit}" for unit, (limit, cost) in costs.items() if limit is not None)
    return f"{what} would be worth {gained:.2%} more, for {price}"
