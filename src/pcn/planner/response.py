"""Worth by the layer itself: the share of its output's variance that comes through the leading directions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pcn.layers import canonical_weight
from pcn.planner.values import Values, added_up, directions_of
from pcn.statistics import Statistics


@dataclass(frozen=True)
class Response:
    """Direction j is worth e_j ‖W u_j‖², relative to the layer's whole response; every layer counts the same.

    That is exact for linear layers. For larger kernels their positions are taken as uncorrelated.
    """

    needs_batches: ClassVar[bool] = False

    def __call__(self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]) -> Values:
        return {name: added_up(_shares(model, stats, name)) for name in layers}


def grouped_weight(model: nn.Module, layer: str, groups: int, width: int) -> Tensor:
    """A layer's weight as (groups, outputs of one, inputs of one, kernel positions), in float64."""
    weight = canonical_weight(model.get_submodule(layer)).detach().double()
    return weight.reshape(groups, -1, width, weight[0, 0].numel())


def _shares(model: nn.Module, stats: Statistics, layer: str) -> Tensor:
    _, values, vectors = directions_of(stats, layer)
    weight = grouped_weight(model, layer, *vectors.shape[:2]).to(vectors)
    responses = torch.einsum("gnmk,gmr->gnkr", weight, vectors).square().sum((1, 2))
    shares = (values * responses).sum(0)
    return shares / shares.sum().clamp_min(torch.finfo(shares.dtype).tiny)
