"""How far the leading subspaces of a model's activations move between two looks."""

from __future__ import annotations

from torch import Tensor

from pcn.config import USUAL_RANK, PCNConfig
from pcn.rank_rules import as_rank_rule
from pcn.statistics import Statistics

STILL = 1e-6  # less than this is rounding

Subspaces = dict[str, Tensor]  # the first layer that reads an activation -> its leading directions (inputs, rank)


def leading_subspaces(stats: Statistics, config: PCNConfig) -> Subspaces:
    """The directions that every activation would keep now, in fp32 and on the CPU, to be compared with later."""
    return {key: stats.basis(key, rank).float().cpu() for key, rank in _ranks(stats, config).items()}


def movement(before: Subspaces, stats: Statistics, config: PCNConfig) -> float:
    """The share of today's leading variance that the earlier directions miss, averaged over the activations.

    With today's leading eigenpairs (e, u) of an activation and the earlier directions U it is 1 - sum of e |Uᵀu|² over
    sum of e: 0 when U spans them all. An activation that stands still, as the model's own input does, tells nothing
    and does not count.
    """
    missed = [_missed(before[key], stats, key, rank) for key, rank in _ranks(stats, config).items() if key in before]
    moving = [share for share in missed if share > STILL]
    return sum(moving) / len(moving) if moving else 0.0


def _ranks(stats: Statistics, config: PCNConfig) -> dict[str, int]:
    """The largest rank that the readers of an activation ask for, where it has room to move."""
    asked = {name: config.rule_for(name)[0].rank for name in stats.layers if config.excludes(name) is None}
    if all(rank is None for rank in asked.values()):
        asked = dict.fromkeys(asked, USUAL_RANK)
    ranks: dict[str, int] = {}
    for name, wish in asked.items():
        if wish is not None:
            key, spectrum = stats.layers[name], stats.spectrum(name)
            rank = as_rank_rule(wish).rank(spectrum)
            if rank < spectrum.width:
                ranks[key] = max(rank, ranks.get(key, 0))
    return ranks


def _missed(before: Tensor, stats: Statistics, key: str, rank: int) -> float:
    values, vectors = stats.spectrum(key).leading(rank)  # (g, r), (g, w, r)
    groups, width, _ = vectors.shape
    earlier = before.to(vectors).view(groups, width, -1)
    held = (earlier.mT @ vectors).square().sum(1)  # (g, r)
    total = values.sum()
    return float(1 - (values * held).sum() / total) if bool(total > 0) else 0.0
