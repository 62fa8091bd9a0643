"""How far the leading subspaces of a model's activations move between two looks."""

from __future__ import annotations

from torch import Tensor

from pcn.config import ExplainedVariance, PCNConfig, as_rank_rule
from pcn.statistics import Statistics

Directions = dict[str, Tensor]  # the first layer that reads an activation -> its leading directions (inputs, rank)


def leading_directions(stats: Statistics, config: PCNConfig) -> Directions:
    """The directions that every activation would keep now, in fp32 and on the CPU, to be compared with later."""
    return {key: stats.basis(key, rank).float().cpu() for key, rank in _ranks(stats, config).items()}


def movement(before: Directions, stats: Statistics, config: PCNConfig) -> float:
    """The share of today's leading variance that the earlier directions miss, averaged over the activations.

    With today's leading eigenpairs (e, u) of an activation and the earlier directions U it is 1 - sum of e |Uᵀu|² over
    sum of e: 0 when U spans them all.
    """
    missed = [_missed(before[key], stats, key, rank) for key, rank in _ranks(stats, config).items() if key in before]
    return sum(missed) / len(missed) if missed else 0.0


def _ranks(stats: Statistics, config: PCNConfig) -> dict[str, int]:
    """The rank of every activation that has room to move; where no rank is asked for, 95% of the variance."""
    ranks = {}
    for key in dict.fromkeys(stats.layers.values()):
        rule = as_rank_rule(config.rule_for(key)[0].rank or ExplainedVariance(0.95))
        spectrum = stats.spectrum(key)
        rank = rule.rank(spectrum)
        if config.excludes(key) is None and rank < spectrum.width:
            ranks[key] = rank
    return ranks


def _missed(before: Tensor, stats: Statistics, key: str, rank: int) -> float:
    values, vectors = stats.spectrum(key).leading(rank)  # (g, r), (g, w, r)
    groups, width, _ = vectors.shape
    earlier = before.to(vectors).view(groups, width, -1)
    held = (earlier.mT @ vectors).square().sum(1)  # (g, r)
    total = values.sum()
    return float(1 - (values * held).sum() / total) if bool(total > 0) else 0.0
