"""What a layer gets out of some of its inputs: the share of its response that goes when they do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pcn.layers import by_group, canonical_weight
from pcn.planner.values import eigenpairs_of
from pcn.plans.layer_plan import LayerPlan
from pcn.statistics import Statistics


@dataclass(frozen=True)
class Reading:
    """How a layer responds to its input, E Σ_k ‖W_k U Uᵀ (x - mu)‖² with its leading directions U, group by group."""

    vectors: Tensor  # (g, w, r)
    variances: Tensor  # (g, r), of the coordinates
    counted: Tensor  # (g, w): the mean that is lost with an input; 0 where the order keeps it
    gram: Tensor  # (g, r, r): Σ_k (W_k U)ᵀ W_k U

    @classmethod
    def of(cls, model: nn.Module, stats: Statistics, layer: LayerPlan) -> Reading:
        mean, variances, vectors = eigenpairs_of(stats, layer.name)
        weight = by_group(canonical_weight(model.get_submodule(layer.name)).detach().to(vectors), layer.groups)
        seen = torch.einsum("gnmk,gmr->gnrk", weight, vectors)
        counted = mean.to(vectors) if layer.order == "truncate_first" else torch.zeros_like(mean).to(vectors)
        return cls(vectors, variances, counted, torch.einsum("gnrk,gnsk->grs", seen, seen))

    def carried(self, rank: int | None) -> Tensor:
        """Return (inputs,): the share of the response through so many directions that goes with each input alone."""
        vectors, gram = self.vectors[..., :rank], self.gram[:, :rank, :rank]
        power = torch.einsum("gmr,gr->gm", self.vectors.square(), self.variances) + self.counted.square()
        gone = power * torch.einsum("gmr,grs,gms->gm", vectors, gram, vectors).clamp_min(0)
        return (gone / self._responses()[:rank][-1]).flatten().cpu()

    def left(self, gone: Tensor) -> Tensor:
        """Return (ranks + 1,): the share of the response through 0, 1, ... directions without the inputs ``gone``."""
        lost = self.vectors * gone.to(self.vectors).reshape(*self.counted.shape, 1)
        overlap = self.vectors.mT @ lost
        constant = (self.counted[:, None] @ lost).mT
        power = overlap.mT @ (self.variances[..., None] * overlap) + constant @ constant.mT
        # Through the first r directions go the pairs of the first r.
        through = (self.gram * power).sum(0).cumsum(0).cumsum(1).diagonal()
        return torch.cat([through.new_ones(1), (1 - through / self._responses()).clamp(0, 1)]).cpu()

    def _responses(self) -> Tensor:
        """(ranks,): the response through 1, 2, ... directions."""
        each = self.variances * self.gram.diagonal(dim1=-2, dim2=-1)
        return each.sum(0).cumsum(0).clamp_min(torch.finfo(each.dtype).tiny)
