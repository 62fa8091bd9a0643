"""What every kernel computes, in plain PyTorch on rows: the specification, and what runs where no kernel does.

Letters: z (M, m) rows of a layer's output, s what is added to it, U the basis (m, r), mu the mean (m),
y = relu(bn(z) + s), p = (y - mu) U. Statistics and the products' sums are fp32, or fp64 for fp64 rows; y has the rows'
dtype, p the basis'.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Norm(NamedTuple):
    """A batch norm with the statistics that it is used with, each of shape (m,)."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    inverse_std: Tensor


class Gradients(NamedTuple):
    """Of the rows, of what was added to them (empty if nothing was), and of batch norm's weight and bias."""

    rows: Tensor
    added: Tensor
    weight: Tensor
    bias: Tensor


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype that sums are made in."""
    return torch.promote_types(tensor.dtype, torch.float32)


def batch_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of every column."""
    wide = rows.to(wide_dtype(rows))
    mean = wide.mean(0)
    return mean, (wide - mean).square().mean(0)


def add_moments(rows: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of two tensors, and the mean and the biased variance of its columns."""
    total = rows + other
    return total, *batch_moments(total)


def norm_project(
    rows: Tensor,
    added: Tensor | None,
    norm: Norm,
    basis: Tensor | None,
    centre: Tensor | None,
    *,
    relu: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Return y = relu(bn(z) + s) and, with a basis, p = (y - mu) U; without a centre mu counts as zero."""
    wide = _before_relu(rows, added, norm)
    wide = wide.relu() if relu else wide
    y = wide.to(rows.dtype)
    return y, None if basis is None else project(wide, basis, centre)


def project(rows: Tensor, basis: Tensor, centre: Tensor | None) -> Tensor:
    """Return (x - mu) U, where x - mu is rounded to the basis' dtype before it is multiplied."""
    centred = rows if centre is None else rows - centre.to(wide_dtype(rows))
    return centred.to(basis.dtype) @ basis


def norm_project_backward(
    d_projected: Tensor | None,
    d_y: Tensor | None,
    rows: Tensor,
    added: Tensor | None,
    y: Tensor | None,
    norm: Norm,
    basis: Tensor | None,
    *,
    training: bool,
    relu: bool = True,
) -> Gradients:
    """Return the gradients of :func:`norm_project`; in training also through the batch's own mean and variance.

    Where something was added, either that or the ``y`` that came out says where ReLU let through.
    """
    wide = wide_dtype(rows)
    gradient = torch.zeros_like(rows, dtype=wide)
    if d_projected is not None:
        assert basis is not None
        gradient = gradient + d_projected.to(wide) @ basis.to(wide).T
    if d_y is not None:
        gradient = gradient + d_y.to(wide)
    if relu:
        gradient = torch.where((_before_relu(rows, added, norm) if y is None else y) <= 0, 0.0, gradient)
    normal = (rows.to(wide) - norm.mean) * norm.inverse_std
    d_weight, d_bias = (gradient * normal).sum(0), gradient.sum(0)
    d_rows = gradient
    if training:
        d_rows = gradient - (d_bias + normal * d_weight) / rows.shape[0]
    d_rows = (d_rows * (norm.weight * norm.inverse_std)).to(rows.dtype)
    d_added = rows.new_empty(0) if added is None and y is None else gradient.to(rows.dtype)
    return Gradients(d_rows, d_added, d_weight.to(norm.weight.dtype), d_bias.to(norm.bias.dtype))


def expand_norm_project(
    core: Tensor,
    expansion: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    basis: Tensor,
    centre: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return p = (relu(bn(h Vᵀ)) - mu) U for h (M, s) and V (m, s), and the mean and biased variance of h Vᵀ.

    The statistics of the m columns come from those of the s: mean V h, variance v_cᵀ Cov(h) v_c.
    """
    wide = core.to(wide_dtype(core))
    core_mean = wide.mean(0)
    centred = wide - core_mean
    covariance = centred.T @ centred / len(core)
    expansion = expansion.to(wide.dtype)
    mean, variance = expansion @ core_mean, ((expansion @ covariance) * expansion).sum(1).clamp_min(0)
    normal = (centred @ expansion.T) * (variance + eps).rsqrt()
    return project((normal * weight + bias).relu(), basis, centre), mean, variance


def _before_relu(rows: Tensor, added: Tensor | None, norm: Norm) -> Tensor:
    wide = rows.to(wide_dtype(rows))
    normed = (wide - norm.mean) * (norm.inverse_std * norm.weight) + norm.bias
    return normed if added is None else normed + added.to(normed.dtype)
