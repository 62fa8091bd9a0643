"""Random configurations for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from pcn import ExplainedVariance, Fraction, L1Threshold, LayerRule, PCNConfig, Threshold
from pcn.config import BASES, ORDERS, KeepOutputs, Order
from pcn.layers import transformable_layers
from pcn.rank_rules import Rank
from random_models.choices import Choices


def layer_names(model: nn.Module) -> list[str]:
    """The layers that could be transformed."""
    return [name for name, _, reason in transformable_layers(model) if reason is None]


def full_basis(c: Choices, model: nn.Module) -> PCNConfig:
    """Every layer in all directions of its input; some outputs dropped."""
    return _other_bases(c, _config(c, model, [1.0], _keep(c)))


def full_rank(c: Choices, model: nn.Module) -> PCNConfig:
    """Every layer in all directions of its input; nothing dropped."""
    return _other_bases(c, PCNConfig(rank=1.0, order=c.pick(ORDERS), skip_larger=False))


def low_rank(c: Choices, model: nn.Module) -> PCNConfig:
    """Few directions, by any rule."""
    ranks: list[Rank] = [0.5, 1, Fraction(0.25), ExplainedVariance(0.9), Threshold(0.05)]
    config = _config(c, model, ranks, _keep(c) if c.chance(80) else None)
    skips, trains, keeps = c.chance(50), c.chance(20), c.chance(15)
    config = replace(config, skip_larger=skips, train_basis=trains, keep_dropped=keeps, multiple_of=c.pick([1, 1, 2]))
    return _other_bases(c, replace(config, output_rank=c.pick([None, None, 2, 0.5])))


def named(c: Choices, model: nn.Module) -> PCNConfig:
    """One or two layers by their exact names: what cannot be done must raise."""
    names = layer_names(model)
    rules = {
        c.pick(names): LayerRule(rank=c.pick([1.0, 1, 3, 9]), keep_outputs=_keep(c), order=_order(c))
        for _ in range(c.between(1, 2) if names else 0)
    }
    return PCNConfig(rank=1.0, layers=rules, skip_larger=False)


def _config(c: Choices, model: nn.Module, ranks: Sequence[Rank], keep: KeepOutputs | None) -> PCNConfig:
    patterns = [_glob(c, name) for name in layer_names(model)]
    layers, exclude = {}, []
    if patterns:
        for _ in range(c.below(3)):
            rank = None if c.chance(20) else c.pick(ranks)
            layers[c.pick(patterns)] = LayerRule(rank, keep_outputs=_keep(c), order=_order(c))
        if c.chance(30):
            exclude.append(c.pick(patterns))
    return PCNConfig(c.pick(ranks), keep, layers, tuple(exclude), c.pick(ORDERS), skip_larger=False)


def _other_bases(c: Choices, config: PCNConfig) -> PCNConfig:
    """Now and then other directions than PCA's, which the order of blocks has no choice about."""
    orders = {config.order, *(rule.order for rule in config.layers.values())}
    if c.chance(60) or "kept_block" in orders:
        return config
    return replace(config, basis=c.pick(BASES), precondition=c.pick([0.0, 0.5, 1.0]))


def _keep(c: Choices) -> KeepOutputs | None:
    options: list[KeepOutputs | None] = [0.5, 0.75, 0.3, 3, L1Threshold(0.8), L1Threshold(1.5), 1, None]
    return c.pick(options)


def _order(c: Choices) -> Order | None:
    return c.pick([None, *ORDERS])


def _glob(c: Choices, name: str) -> str:
    """A pattern, never the name itself, that matches this layer and perhaps others."""
    head, _, tail = name.rpartition(".")
    return c.pick([f"{name[:-1]}*", f"{head}.*" if head else "*", f"*{tail}"])
