"""Samples with a known kind of spectrum, and scikit-learn's word on them."""

import torch
from sklearn.decomposition import PCA

from pcn.layers import LINEAR
from pcn.statistics import forms
from pcn.statistics.blocks import as_block
from pcn.statistics.forms import SketchOptions
from pcn.statistics.moments import Moments


def samples(count: int, width: int, decay: float = 1.5, rank: int | None = None, mean: float = 3.0) -> torch.Tensor:
    """Gaussian rows whose variances fall as 40 / i^decay along directions that are not the axes."""
    variances = 40 * torch.arange(1, width + 1, dtype=torch.float64) ** -decay
    variances[width if rank is None else rank :] = 0
    rows = torch.randn(count, width, dtype=torch.float64) * variances.sqrt()
    for _ in range(3):  # reflections turn the axes at the cost of a product with a vector
        direction = torch.nn.functional.normalize(torch.randn(width, dtype=torch.float64), dim=0)
        rows -= 2 * torch.outer(rows @ direction, direction)
    return (rows + mean).float()


def moments(rows: torch.Tensor, groups: int = 1, options: SketchOptions | None = None) -> Moments:
    return forms.begin(as_block(rows, LINEAR, groups), options or SketchOptions())


def oracle(rows: torch.Tensor) -> PCA:
    return PCA(svd_solver="full").fit(rows.double().numpy())


def angle(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The sine of the largest angle between two subspaces given by orthonormal columns."""
    outside = expected - found @ (found.T @ expected)
    return float(torch.linalg.matrix_norm(outside, ord=2))


def is_orthonormal(columns: torch.Tensor, tolerance: float = 1e-12) -> bool:
    unit = torch.eye(columns.shape[-1], dtype=columns.dtype)
    return bool(((columns.mT @ columns - unit).abs() < tolerance).all())
