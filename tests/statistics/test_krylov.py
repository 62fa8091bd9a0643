"""The leading eigenpairs of operators whose spectra make it hard to find them."""

import pytest
import torch

from pcn.statistics.krylov import BLOCK, Krylov, random_rows
from spectra import angle, is_orthonormal


def solver(spectrum):
    """A Krylov space of an operator with this spectrum, and its eigenvectors as columns."""
    values = torch.as_tensor(spectrum, dtype=torch.float64)
    vectors = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64)).Q
    matrix = (vectors * values) @ vectors.T
    start = random_rows(BLOCK, matrix[:0])
    return Krylov(lambda rows: rows @ matrix, values.sum(), start, tolerance=1e-6, floor=1e-12), vectors


def leading(count):
    return lambda values: count if len(values) >= count else None


def above(threshold):
    def enough(values):
        count = int((values > threshold).sum())
        return count + 1 if count < len(values) else None

    return enough


@pytest.mark.parametrize("decay", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("count", [1, 20, 60])
def test_leading_pairs_of_a_power_law(decay, count):
    spectrum = 50 * torch.arange(1, 401, dtype=torch.float64) ** -decay
    krylov, vectors = solver(spectrum)
    values, rows = krylov.until(leading(count), limit=400)
    torch.testing.assert_close(values, spectrum[:count], rtol=1e-8, atol=1e-10)
    assert is_orthonormal(rows.T)
    assert angle(rows.T, vectors[:, :count]) < 1e-3


@pytest.mark.parametrize("copies", [2, 33, 100])
def test_copies_of_an_eigenvalue_are_all_counted(copies):
    spectrum = [5.0] * copies + [0.5 / i for i in range(1, 301 - copies)]
    krylov, _ = solver(spectrum)
    found = krylov.until(above(1.0), limit=300)
    assert len(found[0]) == copies + 1


def test_values_close_to_the_threshold_fall_on_the_right_side():
    spectrum = [10.0, 5.0, 1.0 + 1e-6, 1.0 - 1e-6] + [1.0 - 1e-3 * i for i in range(1, 200)]
    krylov, _ = solver(spectrum)
    assert len(krylov.until(above(1.0), limit=203)[0]) == 4


def test_an_answer_out_of_sight_is_given_up_early():
    krylov, _ = solver([2.0 - i / 800 for i in range(800)])
    assert krylov.until(lambda values: None if values.sum() < 900 else len(values), limit=400) is None
    assert krylov.dimensions < 300


def test_low_rank_is_noticed():
    krylov, _ = solver([3.0, 2.0, 1.0] + [0.0] * 197)
    values, rows = krylov.until(leading(50), limit=200)
    torch.testing.assert_close(values[:3], torch.tensor([3.0, 2.0, 1.0]).double())
    assert (values[3:] < 1e-10).all()
    assert is_orthonormal(rows.T)


def test_nothing_at_all():
    krylov, _ = solver([0.0] * 100)
    values, rows = krylov.until(leading(5), limit=100)
    assert (values == 0).all()
    assert is_orthonormal(rows.T)


def test_all_equal_exhausts_the_space():
    krylov, _ = solver([2.0] * 90)
    values, rows = krylov.until(above(1.0), limit=1000)
    torch.testing.assert_close(values, torch.full((90,), 2.0).double())
    assert is_orthonormal(rows.T)


def test_a_flat_spectrum_gives_up_at_the_limit():
    krylov, _ = solver(torch.linspace(2, 1, 300))
    assert krylov.until(above(0.5), limit=100) is None


def test_the_next_question_goes_on_from_the_last():
    krylov, _ = solver(50 * torch.arange(1, 401) ** -1.0)
    first = krylov.until(leading(10), limit=400)[0]
    dimensions = krylov.dimensions
    torch.testing.assert_close(krylov.until(leading(8), limit=400)[0], first[:8], rtol=1e-12, atol=0)
    assert krylov.dimensions <= dimensions + 100
