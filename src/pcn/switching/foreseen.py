"""What the switch would refuse, said when it is made: by its configuration, its model's layers and its optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from pcn.config import LayerRule, PCNConfig
from pcn.errors import ConfigError
from pcn.layers import out_width
from pcn.planner.budget import Budget, config_of
from pcn.plans.ranks import rank_layers
from pcn.rewriting.groups import held_by
from pcn.rewriting.optimizer_checks import check_holds
from pcn.rewriting.replaced import Replaced
from pcn.switching.fading import unfading

Layers = Mapping[str, nn.Module]


def check_fade(fade: int, wish: PCNConfig | Budget) -> None:
    """Raise unless this is a number of steps, over which all that is asked for can fade."""
    if isinstance(fade, bool) or not isinstance(fade, int) or fade < 0:
        raise ConfigError(f"fade={fade!r}: give a number of steps, or 0 to cut at once")
    if not fade:
        return
    config = config_of(wish)
    if config.keep_dropped:
        raise ConfigError(f"fade={fade} with keep_dropped, which keeps what fade takes away: choose one of them")
    asked = "drop_channels" if isinstance(wish, Budget) and wish.drop_channels else _keeping_outputs(config)
    if asked is not None:
        raise ConfigError(
            f"fade={fade} with {asked}: channels that are dropped cannot fade; switch without fade, or keep all of them"
        )


def check_could_fade(config: PCNConfig, layers: Layers, model: nn.Module) -> None:
    """Raise for layers that cannot fade and will have to: without a bias, in a model without batch norm."""
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        return  # whether it stands behind the layer, the graph will tell
    bare = [name for name, layer in layers.items() if layer.bias is None and config.centres(name)]
    named = [name for name in bare if name in config.layers and config.layers[name].transforms]
    if named or (bare and len(bare) == len(layers)):
        raise unfading((named or bare)[0])


def check_rules(config: PCNConfig, layers: Layers) -> None:
    """Raise what a plan would raise of ranks, orders and outputs, as far as sizes alone tell."""
    known = {pattern: rule if pattern in layers else _any_rank(rule) for pattern, rule in config.layers.items()}
    known = {pattern: _any_rank(rule) if rule.needs_statistics else rule for pattern, rule in known.items()}
    rank = config.rank if config.rank is None else 1.0
    rank_layers([(*each, None) for each in layers.items()], None, replace(config, rank=rank, layers=known), {})
    for name, layer in layers.items():
        rule, exact = config.rule_for(name)
        if exact and isinstance(rule.keep_outputs, int) and rule.keep_outputs > out_width(layer):
            raise ConfigError(
                f"{name!r} is asked to keep {rule.keep_outputs} outputs, but it has only {out_width(layer)}"
            )


def check_some_held(optimizers: Sequence[Optimizer], model: nn.Module) -> None:
    """Raise when no optimizer holds any of the model's parameters."""
    held = held_by(optimizers)
    if not any(id(parameter) in held for parameter in model.parameters()):
        anything = [Replaced(parameter, parameter, None) for parameter in model.parameters()]
        check_holds(optimizers, anything, model, strict=False, quiet=True)


def _keeping_outputs(config: PCNConfig) -> str | None:
    """Where a configuration asks for some outputs to be kept, and the others dropped."""
    if config.keep_outputs is not None:
        return "keep_outputs"
    ruled = next((name for name, rule in config.layers.items() if rule.keep_outputs is not None), None)
    return None if ruled is None else f"keep_outputs in layers[{ruled!r}]"


def _any_rank(rule: LayerRule) -> LayerRule:
    """The rule with a rank that fits every layer, where it has one: a glob may match layers that nobody calls."""
    return rule if rule.rank is None else replace(rule, rank=1.0)
