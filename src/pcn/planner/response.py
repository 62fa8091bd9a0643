"""Worth by the layer itself: the share of its output's variance that comes through the leading directions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pcn.layers import by_group, canonical_weight
from pcn.planner.values import Values, added_up, eigenpairs_of
from pcn.statistics import Statistics


@dataclass(frozen=True)
class Response:
    """Direction j is worth e_j ‖W u_j‖², relative to the layer's whole response; every layer counts the same.

    That is exact for linear layers of up to 1,024 inputs; for wider ones what lies beyond that many directions is
    estimated. Positions of larger kernels are taken as uncorrelated.
    """

    needs_batches: ClassVar[bool] = False

    def __call__(self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]) -> Values:
        return {name: _worth(model, stats, name) for name in layers}


def _worth(model: nn.Module, stats: Statistics, layer: str) -> Tensor:
    _, values, vectors = eigenpairs_of(stats, layer)
    _, width, known = vectors.shape
    weight = by_group(canonical_weight(model.get_submodule(layer)).detach().to(vectors), len(vectors))
    responses = torch.einsum("gnmk,gmr->gnkr", weight, vectors).square().sum((1, 2))
    each = (values * responses).sum(0)
    # Directions beyond are taken to share what is left of the variance and of the weight evenly.
    variance = (stats.spectrum(layer).total_variance.to(values) - values.sum(1)).clamp_min(0)
    gain = (weight.square().sum((1, 2, 3)) - responses.sum(1)).clamp_min(0) / max(width - known, 1)
    rest = float((variance * gain).sum()) if known < width else 0.0
    total = max(float(each.sum()) + rest, torch.finfo(each.dtype).tiny)
    return added_up(each / total, width, rest / total)
