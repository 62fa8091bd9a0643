"""What settings say about models and principal component networks, turned into objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any, cast

from torch import nn

from pcn import models
from pcn.config import USUAL_RANK, BasisKind, LayerRule, Order, PCNConfig, Stepper
from pcn.errors import ConfigError, suggest
from pcn.layers import transformable_layers
from pcn.planner import Divergence, Evenly, Hedged, Response, Taylor, Worth, prediction_divergence
from pcn.planner.budget import Budget, as_budget
from pcn.rank_rules import ExplainedVariance, Rank, Threshold
from pcn.training.named_models import build_named
from pcn.training.settings import LIMITS, Settings

SIZES = ("rank", "keep_outputs", "output_rank")  # of a rule for layers; what else it says is how


def build_model(settings: Settings) -> nn.Module:
    """Build the model that the settings name."""
    model = build_named(settings.model, settings.model_options)
    if settings.pcn is not None:
        _check_parent(settings, model)
    return model


def _check_parent(settings: Settings, model: nn.Module) -> None:
    """Raise where ``pcn`` names what another network of the paper keeps than the model is."""
    parent = cast(str, settings.pcn).rpartition("-pcn")[0]
    own = settings.model.partition("-pcn")[0]
    why = ""
    try:
        pcn_config(settings).check_names(name for name, _, _ in transformable_layers(model))
    except ConfigError as error:
        why = f" ({str(error).partition('; ')[0]})"
    if why or (own in models.names() and own != parent):
        raise ConfigError(
            f"pcn={settings.pcn!r} is for model={parent!r}, not for {settings.model!r}{why}: give that model, or leave "
            "pcn out and say in rank, layers or a budget what this one keeps"
        )


def pcn_config(settings: Settings) -> PCNConfig:
    """The configuration of the switch."""
    own = settings.rank or settings.output_rank or settings.keep_outputs or settings.layers or settings.exclude
    if settings.pcn is None:
        config = _own_config(settings)
    elif own:
        raise ConfigError("pcn names a configuration of the paper: leave rank, keep_outputs, layers, exclude out")
    else:
        found = models.config(settings.pcn)
        if found is None:
            raise ConfigError(f"pcn={settings.pcn!r} is a plain network; its PCNs end in -pcn, -pcn0 and so on")
        config = found
    return replace(
        config,
        order=cast(Order, settings.order),
        basis=cast(BasisKind, settings.basis),
        precondition=settings.precondition,
        sized_for=cast(Stepper | None, settings.sized_for),
        kernel_rank=settings.kernel_rank,
        centred=settings.centred,
        train_basis=settings.train_basis,
        keep_dropped=settings.keep_dropped,
    )


def requested(settings: Settings) -> PCNConfig | Budget:
    """What the switch is to make of the model: a configuration, or a budget around one."""
    config = pcn_config(settings)
    budget = as_budget(config, **{name: getattr(settings, name) for name in LIMITS})
    if budget is None:
        return config
    worths: dict[str, Worth] = {
        "response": Response(),
        "taylor": Taylor(),
        "divergence": Divergence(prediction_divergence),
        "evenly": Evenly(),
        "hedged": Hedged(),
    }
    return replace(
        budget,
        step=settings.rank_step,
        floor=settings.rank_floor,
        worth=None if settings.worth is None else worths[settings.worth],
        two_sided=settings.two_sided,
        drop_channels=settings.drop_channels,
        patterns=settings.patterns,
        batch=settings.batch,
        optimizer=optimizer_kind(settings),
    )


def optimizer_kind(settings: Settings) -> str:
    """What the optimizer keeps, by the names of a budget."""
    if settings.optimizer == "sgd":
        return "momentum" if settings.momentum else "sgd"
    return "adam"


def _own_config(settings: Settings) -> PCNConfig:
    rules = {name: _layer_rule(name, rule) for name, rule in settings.layers.items()}
    rank = USUAL_RANK if settings.rank is None else None if settings.rank == "none" else parse_rank(settings.rank)
    return PCNConfig(
        rank,
        count_or_fraction(settings.keep_outputs),
        layers=rules,
        exclude=settings.exclude,
        output_rank=count_or_fraction(settings.output_rank),
        skip_larger=settings.skip_larger,
    )


def _layer_rule(name: str, rule: object) -> LayerRule:
    if isinstance(rule, str | float | int) and not isinstance(rule, bool):
        return LayerRule(parse_rank(str(rule)))
    if not isinstance(rule, Mapping):
        raise ConfigError(f"layers.{name}: give a rank, or more as in {{rank = 16, keep_outputs = 32}}")
    known = [each.name for each in fields(LayerRule)]
    if unknown := next((key for key in rule if key not in known), None):
        hint = suggest(unknown, known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"layers.{name} says {unknown!r}, which no rule does{hint}")
    rank, kept, trained = (rule.get(key) for key in SIZES)
    how = {key: given for key, given in rule.items() if key not in SIZES}
    return LayerRule(
        None if rank is None else parse_rank(str(rank)),
        count_or_fraction(kept),
        output_rank=count_or_fraction(trained),
        **how,
    )


def analysis_options(settings: Settings, config: PCNConfig) -> dict[str, Any]:
    """How the layers' inputs are measured; only those are that could be transformed."""
    everywhere = config.transforms_any or settings.has_budget
    return {
        "layers": None if everywhere else list(config.layers),
        **({} if settings.analysis_mode is None else {"mode": settings.analysis_mode}),
        "pool": settings.analysis_pool,
        "fraction": settings.analysis_fraction,
        "gradients": config.needs_gradients,
    }


def parse_rank(text: str) -> Rank:
    """Read a rank rule.

    >>> parse_rank("64"), parse_rank("0.25"), parse_rank("variance > 0.1"), parse_rank("95%")
    (64, 0.25, Threshold(variance=0.1), ExplainedVariance(share=0.95))
    """
    text = text.strip()
    if re.fullmatch(r"\d+", text):
        return int(text)
    number = r"\d*\.?\d+(?:[eE][-+]?\d+)?"
    if match := re.fullmatch(rf"variance\s*>\s*({number})", text):
        return Threshold(float(match[1]))
    if match := re.fullmatch(rf"({number})\s*%", text):
        return ExplainedVariance(float(Decimal(match[1]) / 100))  # 99.9% is 0.999, to the last bit
    if re.fullmatch(number, text):
        return float(text)
    raise ConfigError(f'rank={text!r}: give 64, 0.25 of the width, "variance > 0.1" or "95%" of the variance')


def rank_text(rank: object) -> str:
    """Write a rank rule as :func:`parse_rank` reads it; others as Python shows them.

    >>> rank_text(Threshold(0.1)), rank_text(ExplainedVariance(0.95)), rank_text(64)
    ('variance > 0.1', '95%', '64')
    """
    if isinstance(rank, Threshold):
        return f"variance > {rank.variance:g}"
    if isinstance(rank, ExplainedVariance):
        return f"{100 * rank.share:.12g}%"
    return repr(rank)


def count_or_fraction(given: float | None) -> int | float | None:
    """Read 40 as a count and 0.4 as a fraction of outputs; 1 is one, and 1.0 is all.

    >>> count_or_fraction(40.0), count_or_fraction(0.4), count_or_fraction(1), count_or_fraction(1.0)
    (40, 0.4, 1, 1.0)
    """
    return int(given) if given is not None and given > 1 and given == int(given) else given
