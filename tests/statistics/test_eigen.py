"""Eigenpairs in descending order with deterministic signs, and bases completed to any rank."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pcn.statistics.eigen import completed, from_rows, full, nystrom, of_rank, only_values, with_fixed_signs
from spectra import angle, is_orthonormal, oracle, samples


def covariance(width, rank=None):
    rows = torch.randn(3 * width, width, dtype=torch.float64)
    rows[:, width if rank is None else rank :] = 0
    return torch.cov(rows.T)


@given(st.integers(1, 12), st.integers(0, 99))
def test_signs_do_not_depend_on_the_solver(width, seed):
    vectors = torch.randn(3, width, 4, generator=torch.Generator().manual_seed(seed))
    flips = torch.where(torch.rand(3, 1, 4) < 0.5, -1.0, 1.0)
    fixed = with_fixed_signs(vectors)
    assert torch.equal(fixed, with_fixed_signs(vectors * flips))
    assert torch.equal(fixed.abs(), vectors.abs())
    assert (fixed.amax(-2) == fixed.abs().amax(-2)).all()


def test_all_eigenpairs_of_every_group():
    matrices = torch.stack([covariance(7), covariance(7, rank=3)])
    values, vectors = full(matrices)
    assert (values.diff() <= 0).all()
    assert (values >= 0).all()
    assert is_orthonormal(vectors)
    torch.testing.assert_close(vectors @ torch.diag_embed(values) @ vectors.mT, matrices)


@pytest.mark.parametrize("rank", [None, 5, 1])
def test_the_side_of_the_rows_has_the_same_spectrum(rank):
    rows = samples(12, 30, rank=rank).double()
    rows = rows - rows.mean(0)
    values, vectors = from_rows(rows, degrees=11)
    expected_values, expected_vectors = full(torch.cov(rows.T))
    directions = 11 if rank is None else rank
    assert len(values) == directions
    torch.testing.assert_close(values, expected_values[:directions], rtol=1e-10, atol=0)
    assert is_orthonormal(vectors)
    assert angle(vectors, expected_vectors[:, :directions]) < 1e-6


@pytest.mark.parametrize("decay", [0.0, 1.5, 4.0])
def test_a_covariance_of_few_samples_has_the_spectrum_of_the_rows(decay):
    rows = samples(40, 200, decay=decay).double()
    rows = rows - rows.mean(0)
    expected_values, expected_vectors = from_rows(rows, degrees=39)
    values, vectors = of_rank((rows.T @ rows / 39)[None], 39)
    torch.testing.assert_close(values[0], expected_values, rtol=1e-9, atol=0)
    assert is_orthonormal(vectors)
    torch.testing.assert_close(vectors[0], expected_vectors, rtol=0, atol=1e-7)
    assert torch.equal(vectors, of_rank((rows.T @ rows / 39)[None], 39)[1])


def test_eigenvalues_alone_are_those_of_the_pairs():
    matrices = torch.stack([covariance(7), covariance(7, rank=3)])
    torch.testing.assert_close(only_values(matrices), full(matrices)[0])


def test_rows_of_low_rank_have_as_many_eigenvalues():
    rows = torch.randn(12, 3, dtype=torch.float64) @ torch.randn(3, 30, dtype=torch.float64)
    values, vectors = from_rows(rows - rows.mean(0), degrees=11)
    assert len(values) == 3
    assert is_orthonormal(vectors)


@given(
    width=st.integers(1, 40),
    known=st.integers(0, 40),
    rank=st.integers(1, 40),
)
def test_a_basis_is_completed_to_any_rank(width, known, rank):
    known, rank = min(known, width), min(rank, width)
    basis = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64)).Q[:, :known]
    whole = completed(basis, rank)
    assert whole.shape == (width, rank)
    assert is_orthonormal(whole)
    assert torch.equal(whole[:, :known], basis[:, :rank])
    assert torch.equal(whole, completed(basis, rank))
    torch.testing.assert_close(whole, completed(basis, width)[:, :rank], rtol=0, atol=1e-12)


def test_a_sketch_of_low_rank_is_exact():
    rows = samples(200, 40, rank=6)
    centred = rows.double() - rows.double().mean(0)
    matrix = centred.T @ centred / 199
    test = torch.randn(40, 12, dtype=torch.float64)
    values, vectors = nystrom(test[None], (matrix @ test)[None], resolution=1e-12)
    pca = oracle(rows)
    torch.testing.assert_close(values[0, :6], torch.from_numpy(pca.explained_variance_[:6]), rtol=1e-8, atol=0)
    assert is_orthonormal(vectors)
    assert angle(vectors[0, :, :6], torch.from_numpy(pca.components_[:6].T)) < 1e-5


def test_a_sketch_of_nothing_is_nothing():
    values, vectors = nystrom(torch.randn(2, 9, 4).double(), torch.zeros(2, 9, 4).double(), resolution=1e-7)
    assert torch.equal(values, torch.zeros(2, 4).double())
    assert is_orthonormal(vectors)


def test_a_solver_that_does_not_converge_is_followed_by_another(monkeypatch):
    matrix = covariance(6)[None]
    expected = full(matrix)

    def fail(matrix):
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigh", fail)
    monkeypatch.setattr(torch.linalg, "eigvalsh", fail)
    torch.testing.assert_close(only_values(matrix), expected[0])
    for found, wanted in zip(full(matrix), expected, strict=True):
        torch.testing.assert_close(found, wanted)
