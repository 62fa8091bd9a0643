"""What patterns of taps keep of a layer's response, so that a budget can choose how many of them directions have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pcn.layers import by_group, canonical_weight, groups_of, transformable_layers
from pcn.planner.values import eigenpairs_of
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.ranks import check_batch, stats_for
from pcn.rewriting.patterns import patterns_of
from pcn.rewriting.taps import Along, TapMoments, look_at_taps
from pcn.statistics import Statistics

if TYPE_CHECKING:
    from pcn.planner.budget import Budget

MOST = 2**25  # numbers of what the taps of a layer read along all its directions, each tap with each
FINE = 8  # numbers of patterns from here to twice as many go in steps of 1, to four times as many of 2, and so on


def pattern_counts(taps: int) -> Iterator[int]:
    """The numbers of patterns that are tried, below all taps.

    >>> list(pattern_counts(9)), list(pattern_counts(25)), list(pattern_counts(1))
    ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24], [])
    """
    count = 1
    while count < taps:
        yield count
        count += max(1, 2 ** (count.bit_length() - FINE.bit_length()))


def tried_patterns(layer: LayerPlan, budget: Budget) -> tuple[int | None, ...]:
    """The numbers of patterns that a budget may choose from; None is every tap."""
    return (None, *pattern_counts(layer.taps)) if _chooses(budget, layer.name) else (layer.kernel_rank,)


def _chooses(budget: Budget, name: str) -> bool:
    """Whether a budget chooses how many patterns a layer has.

    The order ``kept_block`` makes bases of its own, which have no patterns, and what a rule asks for is no choice.
    """
    rule = budget.config.rule_for(name)[0]
    return bool(budget.patterns) and rule.kernel_rank is None and (rule.order or budget.config.order) != "kept_block"


def tap_directions(model: nn.Module, stats: Statistics, budget: Budget) -> dict[str, Along]:
    """Return principal directions of all layers whose patterns a budget may choose, to look at their taps along.

    Layers with too many taps are left out, unless patterns are asked for.
    """
    stats, choosing = stats_for(budget.config, stats), _choosing(model, stats, budget.settled())
    return {name: _along(stats, name) for name, layer in choosing.items() if budget.patterns or not _crowded(layer)}


def with_many_taps(model: nn.Module, stats: Statistics, budget: Budget) -> list[str]:
    """The layers whose patterns nobody looks for, as that would take long and much memory."""
    return [name for name, layer in _choosing(model, stats, budget.settled()).items() if _crowded(layer)]


def _choosing(model: nn.Module, stats: Statistics, budget: Budget) -> dict[str, nn.Module]:
    """The layers whose number of patterns is the budget's to choose."""
    config = budget.config
    layers = {
        name: layer
        for name, layer, reason in transformable_layers(model)
        if reason is None and config.excludes(name) is None and not config.fixes(name) and _chooses(budget, name)
    }
    weights = {name: canonical_weight(layer) for name, layer in layers.items()}
    return {
        name: layers[name]
        for name, weight in weights.items()
        if name in stats.layers and weight.requires_grad and weight.shape[2:].numel() > 1
    }


def _crowded(layer: nn.Module) -> bool:
    weight = canonical_weight(layer)
    return groups_of(layer) * weight.shape[1] * weight.shape[2:].numel() ** 2 > MOST


def _along(stats: Statistics, name: str) -> Along:
    mean, _, vectors = eigenpairs_of(stats, name)
    return Along(mean.flatten(), vectors.flatten(0, 1), stats.variance(name).sum())


@torch.no_grad()
def tap_shares(
    model: nn.Module, stats: Statistics, layers: Sequence[LayerPlan], step: int, moments: TapMoments | None = None
) -> dict[str, Tensor]:
    """Return (ranks + 1, taps + 1) for every layer: the share of its response that r directions in q patterns keep.

    It is measured along principal directions on the first batch that the statistics saw, unless ``moments`` along them
    are there already. Ranks between multiples of ``step``, from the first on, hold what the next below does.
    """
    for layer in layers:
        check_batch(layer.name, "patterns=True", stats)
    if moments is None:
        moments = look_at_taps(model, stats, {layer.name: _along(stats, layer.name) for layer in layers})
    found = {}
    for layer in layers:
        vectors = eigenpairs_of(stats, layer.name)[2]
        weight = by_group(canonical_weight(model.get_submodule(layer.name)).to(vectors), layer.groups)
        kernels = torch.einsum("gnm...,gmr->gnr...", weight, vectors).flatten(3)
        responses = patterns_of(layer.name, moments[layer.name].to(vectors), kernels)[2]
        found[layer.name] = kept_shares(responses, step, layer.in_features // layer.groups).cpu()
    return found


def kept_shares(responses: Tensor, step: int, width: int) -> Tensor:
    """Return (width + 1, taps + 1) from what the layer makes of each pattern (g, r, taps), as they would be chosen.

    >>> kept_shares(torch.tensor([[[5.0, 1.0], [3.0, 1.0]]]), 1, 2)[:, 1:]
    tensor([[0.0000, 0.0000],
            [0.5000, 0.6000],
            [0.8000, 1.0000]], dtype=torch.float64)
    """
    known, taps = responses.shape[1:]
    ranked = responses.double().sort(dim=2, descending=True).values
    total = ranked.sum().clamp_min(torch.finfo(ranked.dtype).tiny)
    shares = torch.zeros(width + 1, taps + 1, dtype=torch.float64, device=responses.device)
    # A layer that has lost inputs may have fewer than a step.
    for rank in sorted({*range(1, min(step, known)), *range(step, known + 1, step), known}):
        first, others = ranked[:, :rank, :1].sum((1, 2)), ranked[:, :rank, 1:].flatten(1).sort(descending=True).values
        # Each direction has one pattern, and those of most worth among all have the others.
        sums = torch.cat([first[:, None], first[:, None] + others.cumsum(1)], 1).sum(0)
        shares[rank:, 1:] = sums[torch.arange(taps, device=sums.device) * rank] / total
    return shares
