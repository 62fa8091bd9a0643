"""What settings say about models and principal component networks, turned into objects."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from pcn import models
from pcn.config import ExplainedVariance, LayerRule, Order, PCNConfig, Rank, Threshold
from pcn.errors import ConfigError
from pcn.switching import AccuracySlows, AfterEpoch, AfterStep, SubspacesSettle, SwitchRule
from pcn.training.settings import Settings


def build_model(settings: Settings) -> nn.Module:
    """Build a network of the paper by name, or call ``package.module:factory``."""
    if ":" in settings.model:
        made = import_factory(settings.model)(**settings.model_options)
        if not isinstance(made, nn.Module):
            raise ConfigError(f"{settings.model!r} made a {type(made).__name__}, not a torch.nn.Module")
        return made
    if settings.model_options:
        raise ConfigError("model_options belong to a model given as package.module:factory")
    return models.build(settings.model)


def import_factory(path: str) -> Callable[..., Any]:
    """Import ``package.module:factory``; modules in the current folder are found too."""
    module_name, _, name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        raise ConfigError(f"{path!r}: cannot import {module_name!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{path!r}: {module_name!r} has no function or class {name!r}")
    return found  # type: ignore[no-any-return]


def pcn_config(settings: Settings) -> PCNConfig:
    """The configuration of the switch."""
    own = settings.rank or settings.keep_outputs or settings.layers or settings.exclude
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
        train_basis=settings.train_basis,
        keep_dropped=settings.keep_dropped,
    )


def _own_config(settings: Settings) -> PCNConfig:
    rules = {name: _layer_rule(name, rule) for name, rule in settings.layers.items()}
    rank = PCNConfig().rank if settings.rank is None else parse_rank(settings.rank)
    return PCNConfig(rank, count_or_fraction(settings.keep_outputs), layers=rules, exclude=settings.exclude)


def _layer_rule(name: str, rule: object) -> LayerRule:
    if not isinstance(rule, Mapping) or not rule.keys() <= {"rank", "keep_outputs"}:
        raise ConfigError(f"layers.{name}: give rank and keep_outputs, as in {{rank = 16, keep_outputs = 32}}")
    rank = rule.get("rank")
    return LayerRule(None if rank is None else parse_rank(str(rank)), count_or_fraction(rule.get("keep_outputs")))


def check_no_switch(settings: Settings) -> None:
    """Raise when a network is asked for that would never come."""
    for name in ("pcn", "rank", "params", "keep_outputs", "layers", "exclude"):
        if getattr(settings, name):
            raise ConfigError(f"{name}={getattr(settings, name)!r}, but switch_at is 'never': say when, as in 15")


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
        return ExplainedVariance(float(match[1]) / 100)
    if re.fullmatch(number, text):
        return float(text)
    raise ConfigError(f'rank={text!r}: give 64, 0.25 of the width, "variance > 0.1" or "95%" of the variance')


def count_or_fraction(given: float | None) -> int | float | None:
    """Read 40 as a count and 0.4 as a fraction, of outputs or of parameters.

    >>> count_or_fraction(40.0), count_or_fraction(0.4)
    (40, 0.4)
    """
    return int(given) if given is not None and given > 1 and given == int(given) else given


def parse_switch(text: str) -> SwitchRule | None:
    """Read when to switch; None is never.

    >>> parse_switch("15"), parse_switch("step 500"), parse_switch("never")
    (AfterEpoch(epoch=15), AfterStep(step=500), None)
    """
    named: dict[str, SwitchRule | None] = {
        "never": None,
        "accuracy slows": AccuracySlows(),
        "subspaces settle": SubspacesSettle(),
    }
    if text in named:
        return named[text]
    if match := re.fullmatch(r"(step )?(\d+)", text):
        return AfterStep(int(match[2])) if match[1] else AfterEpoch(int(match[2]))
    raise ConfigError(f'switch_at={text!r}: give an epoch, "step 500" or one of {", ".join(map(repr, named))}')
