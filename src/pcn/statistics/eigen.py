"""Symmetric eigenproblems: eigenvalues in descending order, eigenvectors with deterministic signs, all in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

SPARE = 8  # random vectors beyond the rank of a matrix: with them no direction is nearly missed


def with_fixed_signs(vectors: Tensor) -> Tensor:
    """Flip columns so that the entry of largest magnitude in each is positive.

    >>> with_fixed_signs(torch.tensor([[0.6, 0.8], [-0.8, 0.6]]))
    tensor([[-0.6000,  0.8000],
            [ 0.8000,  0.6000]])
    """
    largest = vectors.abs().argmax(-2, keepdim=True)
    return torch.where(vectors.gather(-2, largest) < 0, -vectors, vectors)


def full(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """All eigenvalues (g, w) and eigenvectors (g, w, w) of covariances (g, w, w)."""
    try:
        values, vectors = torch.linalg.eigh(covariance)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # rare: the solver did not converge
        vectors, values, _ = torch.linalg.svd(covariance)  # of a positive semi-definite matrix, the same
        return values, with_fixed_signs(vectors)
    return values.flip(-1).clamp_min(0), with_fixed_signs(vectors.flip(-1))


def from_rows(rows: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
    """The eigenvalues that are not 0 and their vectors, from centred rows (n, w) with n < w, on the side of the rows.

    Both sides of X have the same spectrum: XXᵀ u = d u gives XᵀX (Xᵀu) = d (Xᵀu).
    """
    values, left = full(rows @ rows.T / degrees)
    values = values[values > max(rows.shape) * torch.finfo(rows.dtype).eps * values[0]]
    # Dividing by small eigenvalues costs orthogonality, which QR restores without mixing larger directions in.
    vectors, _ = torch.linalg.qr(rows.T @ left[:, : len(values)])
    return values, with_fixed_signs(vectors)


def of_rank(covariance: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The leading eigenvalues (g, rank) and vectors (g, w, rank) of covariances (g, w, w) of no higher rank.

    The images of as many random vectors span all that such a matrix maps to, and within that the problem is small.
    """
    width = covariance.shape[-1]
    generator = torch.Generator().manual_seed(rank)
    test = torch.randn(width, min(width, rank + SPARE), generator=generator, dtype=covariance.dtype, device="cpu")
    basis, _ = torch.linalg.qr(covariance @ test.to(covariance.device))
    core = basis.mT @ (covariance @ basis)
    values, turn = full((core + core.mT) / 2)
    return values[..., :rank], with_fixed_signs(basis @ turn[..., :rank])


def only_values(covariance: Tensor) -> Tensor:
    """All eigenvalues (g, w) of covariances (g, w, w), in less than half the time of :func:`full`."""
    try:
        values: Tensor = torch.linalg.eigvalsh(covariance)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # rare: the solver did not converge
        return full(covariance)[0]
    return values.flip(-1).clamp_min(0)


def nystrom(test: Tensor, image: Tensor, resolution: float) -> tuple[Tensor, Tensor]:
    """Estimate leading eigenpairs of C from test vectors (g, w, l) and their images C test, as Y (testᵀ Y)⁺ Yᵀ."""
    basis, mix = torch.linalg.qr(test)
    image = torch.linalg.solve_triangular(mix, image, upper=True, left=False)
    core = basis.mT @ image
    values, vectors = torch.linalg.eigh((core + core.mT) / 2)
    floor = resolution * values[..., -1:].clamp_min(torch.finfo(values.dtype).tiny)
    scale = torch.where(values > floor, values.clamp_min(floor).rsqrt(), 0)
    left, small = torch.linalg.qr(image @ (vectors * scale.unsqueeze(-2)))
    turn, singular, _ = torch.linalg.svd(small)
    return singular.square(), with_fixed_signs(left @ turn)


def completed(basis: Tensor, rank: int) -> Tensor:
    """Append columns to orthonormal ones (w, k) until there are ``rank``, the same ones every time.

    >>> completed(torch.tensor([[1.0], [0.0], [0.0]]), 2).abs()
    tensor([[1., 0.],
            [0., 1.],
            [0., 0.]])
    """
    width, known = basis.shape
    if rank <= known:
        return basis[:, :rank]
    units = torch.eye(width, rank, dtype=basis.dtype, device=basis.device)
    if known == 0:
        return units
    # The Householder reflections that take the first unit vectors to the basis take the next ones to its complement.
    reflections, scales = torch.geqrf(basis)
    rest = torch.ormqr(reflections, scales, units[:, known:].contiguous())
    return torch.cat([basis, with_fixed_signs(rest)], dim=1)
