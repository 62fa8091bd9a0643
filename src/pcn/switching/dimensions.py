"""Effective dimensions: how many directions the input of every layer needs, told to loggers as a run goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pcn.config import USUAL_RANK, PCNConfig
from pcn.errors import ConfigError, StatisticsError
from pcn.rank_rules import ExplainedVariance, RankRule, Threshold
from pcn.statistics import Statistics


def dimension_rule(config: PCNConfig) -> RankRule:
    """The rule that effective dimensions are counted by: the configuration's own where it looks at variances.

    Otherwise it is the usual one.

    >>> dimension_rule(PCNConfig(rank=Threshold(0.1))), dimension_rule(PCNConfig(rank=64))
    (Threshold(variance=0.1), ExplainedVariance(share=0.95))
    """
    return config.rank if isinstance(config.rank, Threshold | ExplainedVariance) else USUAL_RANK


def effective_dimensions(stats: Statistics, rule: RankRule = USUAL_RANK) -> dict[str, int | None]:
    """How many directions of every layer's input the rule would keep; None where too few of them are known.

    The statistics are as before: what a later question finds does not depend on whether this one was asked.
    """
    own = replace(stats)  # the same moments, eigenvectors of its own
    return {name: _dimension(own, name, rule) for name in own.layers}


def _dimension(stats: Statistics, name: str, rule: RankRule) -> int | None:
    try:
        return rule.rank(stats.spectrum(name))
    except StatisticsError:
        return None


def log_dimensions(logger: object, epoch: int, dimensions: Mapping[str, int | None]) -> None:
    """Tell a logger the effective dimension of every layer after an epoch.

    A logger is anything with ``add_scalar`` (TensorBoard), ``log_metrics`` (MLflow, Lightning's loggers) or ``log``
    (Weights & Biases, trackio), or a function that takes a dictionary. The last two get the epoch in the dictionary.

    >>> log_dimensions(print, 3, {"fc1": 42})
    {'epoch': 3, 'effective_dimension/fc1': 42}
    """
    if isinstance(logger, logging.Logger | logging.LoggerAdapter):
        raise ConfigError(
            f"log={logger!r} takes lines of text: give a function, such as lambda seen: logger.info('%s', seen)"
        )
    values = {f"effective_dimension/{name}": count for name, count in dimensions.items() if count is not None}
    if (add_scalar := _method(logger, "add_scalar")) is not None:
        for name, count in values.items():
            add_scalar(name, count, epoch)
    elif (log_metrics := _method(logger, "log_metrics")) is not None:
        log_metrics({name: float(count) for name, count in values.items()}, step=epoch)
    elif (log := _method(logger, "log")) is not None:
        log({"epoch": epoch, **values})
    elif callable(logger):
        logger({"epoch": epoch, **values})
    else:
        raise ConfigError(
            f"log={logger!r} cannot be told anything: give an object with log(dict), log_metrics(dict, step=) or "
            "add_scalar(name, value, step), or a function that takes a dictionary"
        )


def _method(logger: object, name: str) -> Callable[..., Any] | None:
    found = getattr(logger, name, None)
    return found if callable(found) else None
