"""Directions along which a layer may read its input, and lead back from: pure maths on (groups, width, rank) tensors.

Letters: C the covariance of the input x, W the weight, one matrix for every position k of the kernel, Γ a Gram matrix
that says how much errors in x matter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pcn.running.seeded import generator
from pcn.statistics import eigen
from pcn.statistics.moments import Moments

RIDGE = 1e-9  # of the mean over directions, added to each: one in which nothing varies, or matters, is still told apart
FLOOR = 1e-3  # of the mean variance: preconditioning counts no direction as having less


class Directions(NamedTuple):
    """``along`` (g, w, r) gives the coordinates z = alongᵀ(x - mu), ``back`` the way back: x is about mu + back z."""

    along: Tensor
    back: Tensor
    variances: Tensor  # (g, r), of the coordinates


def random(covariance: Tensor, rank: int, name: str) -> Directions:
    """Return orthonormal directions that know nothing of the input; the same ones for the same name."""
    groups, width, _ = covariance.shape
    along = drawn(groups, width, rank, name).to(covariance)
    return Directions(along, along, _variances(covariance, along))


def drawn(groups: int, width: int, rank: int, name: str) -> Tensor:
    """Return such directions (g, w, r) alone."""
    normal = torch.randn(groups, width, rank, generator=generator(name), dtype=torch.float64, device="cpu")
    along: Tensor = torch.linalg.qr(normal)[0]
    return along


def balanced(covariance: Tensor, gram: Tensor, rank: int) -> Directions:
    """Return the directions from which x is recovered with the least E (x - x̂)ᵀ Γ (x - x̂), by least squares.

    That is the squared first-order change of a loss with Γ = E[g gᵀ] of its gradients g, where these do not depend on
    x, and the change of a layer's output with :func:`response_gram`. Where Γ, (g, w, w), sees fewer, the directions of
    most variance complete them.
    """
    covariance, gram = _ridged(covariance), _ridged(gram)
    root = _root(covariance)
    leading = eigen.full(root @ gram @ root)[1][..., :rank]
    along = torch.linalg.qr(gram @ root @ leading)[0]  # which spans the same as C^-½ leading, without dividing
    return Directions(along, _way_back(covariance, along), _variances(covariance, along))


def response_gram(weight: Tensor) -> Tensor:
    """Return the Γ of a layer's response, E Σ_k ‖W_k (x - mu)‖²: Σ_k W_kᵀ W_k, for a weight (g, n, w, k)."""
    return torch.einsum("gnmk,gnlk->gml", weight, weight)


def output_directions(weight: Tensor, inputs: Directions, rank: int) -> Tensor:
    """Return the leading directions (g, n, s) of a layer's output, kernel positions taken as uncorrelated."""
    projected = torch.einsum("gnmk,gmr->gnkr", weight, inputs.back)
    return _of_factor(projected * inputs.variances.clamp_min(0).sqrt()[:, None, None, :], rank)


def response_directions(weight: Tensor, inputs: Moments, rank: int) -> Tensor:
    """Return the leading directions (g, n, s) of what a weight (g, n, w, k) makes of inputs, taken likewise."""
    _, outputs, width, taps = weight.shape
    if outputs > width * taps:
        return _of_factor(torch.einsum("gnmk,gml->gnkl", weight, _root(inputs.covariance())), rank)
    rows = weight.permute(0, 3, 1, 2)
    seen = [inputs.apply(each.flatten(0, 1), group) for group, each in enumerate(rows)]
    return _leading(torch.einsum("gknm,gklm->gnl", rows, torch.stack(seen).view_as(rows)), rank)


def _of_factor(factor: Tensor, rank: int) -> Tensor:
    """Return the directions (g, n, s) in which most varies of a covariance F Fᵀ, for F (g, n, k, l).

    Of many outputs it is not formed, and whatever completes the directions beyond its rank.
    """
    factor = factor.flatten(2)
    if factor.shape[1] <= factor.shape[2]:
        return _leading(factor @ factor.mT, rank)
    found = torch.linalg.svd(factor, full_matrices=False)[0][..., :rank]
    if (more := rank - found.shape[2]) > 0:
        found = torch.linalg.qr(F.pad(found, (0, more)))[0]
    return eigen.with_fixed_signs(found)


def _leading(covariance: Tensor, rank: int) -> Tensor:
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


def size_for_adam(coordinates: Tensor, inputs: Tensor) -> Tensor:
    """Return how many times as large (g,) coordinates must be for steps of Adam to move a layer as far as before.

    Adam moves every weight by about its rate, however small the gradient, and so an output by up to the rate times the
    sum of what it reads: of ``inputs`` before, and of ``coordinates`` now, both standard deviations, (g, w) and (g, r).
    A step of SGD goes by the sum of their squares, which PCA keeps.

    >>> size_for_adam(torch.tensor([[4.0]]), torch.ones(1, 16))  # sixteen inputs that go together
    tensor([4.])
    """
    found = coordinates.sum(1)
    return torch.where(found > 0, inputs.to(found).sum(1) / found, 1)


def left_of(found: Directions, kept: Tensor, within: Tensor) -> Tensor:
    """Approximate the variances (g, r) of coordinates that only read the ``kept`` inputs (g, k), by directions' shares.

    A mean ``within`` the inputs (g, w), by whose squares variances about 0 are larger, is known input by input.

    >>> one = torch.eye(2)[None]
    >>> left_of(Directions(one, one, torch.tensor([[4.0, 1.0]])), torch.tensor([[1]]), torch.zeros(1, 2))
    tensor([[0., 1.]])
    """
    places = kept.unsqueeze(-1).expand(-1, -1, found.along.shape[-1])
    squares, of_mean = found.along.square(), found.along * within.to(found.along).unsqueeze(-1)
    share = squares.gather(1, places).sum(1) / squares.sum(1)
    about_it = (found.variances - of_mean.sum(1).square()).clamp_min(0)
    return about_it * share + of_mean.gather(1, places).sum(1).square()


def _way_back(covariance: Tensor, along: Tensor) -> Tensor:
    """Return C B (Bᵀ C B)⁻¹, which recovers x from Bᵀx with the least error; at full rank that is B itself."""
    if along.shape[-1] == along.shape[-2]:
        return along
    seen = covariance @ along
    back: Tensor = torch.linalg.solve(along.mT @ seen, seen.mT).mT
    return back


def _variances(covariance: Tensor, along: Tensor) -> Tensor:
    return torch.einsum("gmr,gml,glr->gr", along, covariance, along).clamp_min(0)


def _ridged(matrix: Tensor) -> Tensor:
    mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    ridge = RIDGE * torch.where(mean > 0, mean, 1)
    return matrix + ridge[:, None, None] * torch.eye(matrix.shape[-1]).to(matrix)


def _root(covariance: Tensor) -> Tensor:
    values, vectors = eigen.full(covariance)
    return (vectors * values.clamp_min(0).sqrt()[:, None, :]) @ vectors.mT
