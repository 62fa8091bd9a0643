"""Directions along which a layer may read its input, and lead back from: pure maths on (groups, width, rank) tensors.

Letters: C the covariance of the input, W the weight, one matrix for every position k of the kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pcn.seeded import generator
from pcn.statistics import eigen

RIDGE = 1e-9  # of the mean variance, added to every direction's: one without any can still be led back from
FLOOR = 1e-3  # of the mean variance: preconditioning counts no direction as having less


class Directions(NamedTuple):
    """``along`` (g, w, r) gives the coordinates z = alongᵀ(x - mu), ``back`` the way back: x is about mu + back z."""

    along: Tensor
    back: Tensor
    variances: Tensor  # (g, r), of the coordinates


def random(covariance: Tensor, rank: int, name: str) -> Directions:
    """Return orthonormal directions that know nothing of the input; the same ones for the same name."""
    drawn = torch.randn(*covariance.shape[:2], rank, generator=generator(name), dtype=torch.float64)
    along = torch.linalg.qr(drawn.to(covariance))[0]
    return Directions(along, along, _variances(covariance, along))


def response(covariance: Tensor, weight: Tensor, rank: int) -> Directions:
    """Return the directions from which a layer's response, E Σ_k ‖W_k (x - mu)‖², is recovered best, by least squares.

    For a linear layer no other r directions come nearer to its output. ``weight`` is (g, n, w, k).
    """
    covariance = _ridged(covariance)
    gram = torch.einsum("gnmk,gnlk->gml", weight, weight)
    root = _root(covariance)
    leading = eigen.full(root @ gram @ root)[1][..., :rank]
    # With A the leading directions of the output, Wᵀ A reads them; where the weight sees fewer, others complete them.
    seen = gram @ root @ leading
    along = torch.linalg.qr(seen + RIDGE * seen.norm(dim=(-2, -1), keepdim=True) * leading)[0]
    return Directions(along, _way_back(covariance, along), _variances(covariance, along))


def output_directions(weight: Tensor, inputs: Directions, rank: int) -> Tensor:
    """Return the leading directions (g, n, s) of a layer's output, kernel positions taken as uncorrelated."""
    projected = torch.einsum("gnmk,gmr->gnrk", weight, inputs.back)
    covariance = torch.einsum("gnrk,gr,glrk->gnl", projected, inputs.variances, projected)
    return eigen.full(covariance)[1][..., :rank]


def uncorrelated(found: Directions, covariance: Tensor) -> Directions:
    """Turn the coordinates within what they span so that no two go together, the most varying first, as PCA's do."""
    variances, turn = eigen.full(found.along.mT @ covariance @ found.along)
    back = found.back @ turn
    return Directions(back if found.back is found.along else found.along @ turn, back, variances)


def preconditioned(found: Directions, power: float) -> Directions:
    """Bring uncorrelated coordinates nearer to the same variance, fully at power 1, with their total as before.

    A step of gradient descent on W~ then moves the layer as if its gradient had been multiplied by C to the -power:
    directions in which the input varies little learn as fast as the others.
    """
    if power == 0:
        return found
    mean = found.variances.mean(-1, keepdim=True)
    floored = torch.where(mean > 0, found.variances + FLOOR * mean, 1)  # an input that never varies stays as it is
    scale = floored ** (-power / 2)
    kept = found.variances.sum(-1, keepdim=True) / (found.variances * scale**2).sum(-1, keepdim=True)
    scale = (scale * torch.where(mean > 0, kept, 1).sqrt())[:, None, :]
    return Directions(found.along * scale, found.back / scale, found.variances * scale[:, 0] ** 2)


def _way_back(covariance: Tensor, along: Tensor) -> Tensor:
    """Return C B (Bᵀ C B)⁻¹, which recovers x from Bᵀx with the least error; at full rank that is B itself."""
    if along.shape[-1] == along.shape[-2]:
        return along
    seen = covariance @ along
    back: Tensor = torch.linalg.solve(along.mT @ seen, seen.mT).mT
    return back


def _variances(covariance: Tensor, along: Tensor) -> Tensor:
    return torch.einsum("gmr,gml,glr->gr", along, covariance, along).clamp_min(0)


def _ridged(covariance: Tensor) -> Tensor:
    mean = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)
    ridge = RIDGE * torch.where(mean > 0, mean, 1)
    return covariance + ridge[:, None, None] * torch.eye(covariance.shape[-1]).to(covariance)


def _root(covariance: Tensor) -> Tensor:
    values, vectors = eigen.full(covariance)
    return (vectors * values.clamp_min(0).sqrt()[:, None, :]) @ vectors.mT
