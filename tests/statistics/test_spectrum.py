"""Every way to a spectrum agrees with scikit-learn's PCA."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pcn.errors import ConfigError, StatisticsError
from pcn.rank_rules import ExplainedVariance, Fixed, Fraction, Threshold
from pcn.statistics import eigen, eigenpairs, forms
from pcn.statistics.forms import SketchOptions
from pcn.statistics.moments import Covariance
from pcn.statistics.samples import Samples
from pcn.statistics.spectrum import Spectrum
from spectra import angle, is_orthonormal, moments, oracle, samples

WIDTH = 240
WAYS = {
    # name: (samples, keep samples, smallest problem for the Krylov solver)
    "eigh": (600, False, 10**6),
    "covariance of few samples": (110, False, 10**6),
    "covariance, leading": (600, False, 0),
    "rows": (150, True, 10**6),
    "rows, leading": (200, True, 0),
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    count, keep, smallest = WAYS[request.param]
    monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 0 if keep else WIDTH)
    monkeypatch.setattr(eigenpairs, "EIGH_SIZE", smallest)
    return count


def test_every_solver_agrees_with_scikit_learn(way):
    rows = samples(way, WIDTH, decay=2.5)
    pca = oracle(rows)
    expected = pca.explained_variance_
    found = Spectrum(moments(rows), "fc")
    threshold = float((expected[11] + expected[12]) / 2)
    assert found.count_above(threshold) == 12
    share = float(pca.explained_variance_ratio_[:7].sum() - 1e-6)
    assert found.count_explaining(share) == 7
    assert found.count_explaining(0.5) == int(np.searchsorted(pca.explained_variance_ratio_.cumsum(), 0.5)) + 1
    np.testing.assert_allclose(found.total_variance, expected.sum(), rtol=1e-6)
    values, vectors = found.leading(12)
    assert values.shape == (1, 12)
    np.testing.assert_allclose(values[0], expected[:12], rtol=1e-6)  # sums in fp32; the solvers add less than 1e-8
    assert is_orthonormal(vectors)
    assert angle(vectors[0], torch.from_numpy(pca.components_[:12].T)) < 1e-3
    assert (vectors.amax(-2) == vectors.abs().amax(-2)).all()


def test_a_mean_that_is_not_taken_off_drowns_nothing(way):
    """fp32 rounds samples by their size, but their sums are of what is left of them: only that is rounded there."""
    rows = samples(way, WIDTH, decay=2.5) + 300
    exact = rows.double()
    expected = torch.linalg.eigvalsh(exact.T @ exact / (way - 1)).flip(0)
    found = Spectrum(moments(rows).about_zero(), "fc")
    threshold = float((expected[11] + expected[12]) / 2)
    assert found.count_above(threshold) == 12
    torch.testing.assert_close(found.total_variance, expected.sum()[None], rtol=1e-9, atol=0)
    values, vectors = found.leading(12)
    torch.testing.assert_close(values[0], expected[:12], rtol=1e-4, atol=0)
    assert is_orthonormal(vectors)


def test_what_rounding_makes_beside_a_constant_mean_is_nothing():
    found = Spectrum(moments(torch.full((600, WIDTH), 100.0)).about_zero(), "fc")
    assert found.count_above(0.0) == 1
    assert not Spectrum(moments(torch.zeros(600, WIDTH)).about_zero(), "fc").largest()


def test_kept_samples_give_eigenvalues_to_the_last_digits(monkeypatch):
    monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 0)
    rows = samples(200, WIDTH, decay=1.5)
    expected = oracle(rows).explained_variance_
    for smallest in (0, 10**6):
        monkeypatch.setattr(eigenpairs, "EIGH_SIZE", smallest)
        values, _ = Spectrum(moments(rows), "fc").leading(10)
        np.testing.assert_allclose(values[0], expected[:10], rtol=1e-8)


def test_the_boundary_is_strictly_greater():
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -0.5]], dtype=torch.float64)
    found = Spectrum(moments(rows), "fc")
    largest = float(found.leading(1)[0])
    assert found.count_above(largest) == 0
    assert found.count_above(np.nextafter(largest, 0)) == 1
    assert Threshold(0.0).rank(found) == 2


def test_no_direction_above_the_threshold_counts_none(way):
    found = Spectrum(moments(samples(way, WIDTH)), "fc")
    assert found.count_above(1e6) == 0
    assert found.count_explaining(1e-9) == 1


def test_low_rank_and_more_directions_than_that(way):
    rows = samples(way, WIDTH, decay=0.5, rank=9)
    found = Spectrum(moments(rows.double()), "fc")  # in fp64 the rounding of the fp32 rows is there too, at 1e-14
    assert found.count_above(1e-9) == 9
    assert found.count_explaining(1 - 1e-9) == 9
    values, vectors = found.leading(40)
    assert (values[0, 9:] < 1e-9).all()
    assert is_orthonormal(vectors)
    whole = found.leading(WIDTH)[1]
    assert is_orthonormal(whole)
    assert torch.equal(whole, found.leading(WIDTH)[1])


def test_rounding_is_not_counted_as_variance():
    rows = torch.randn(500, 5) @ torch.randn(5, 30) + 100
    assert Spectrum(moments(rows), "fc").count_above(0.0) == 5


def test_constant_activations(way):
    found = Spectrum(moments(torch.full((way, WIDTH), 7.0)), "fc")
    assert found.count_above(0.0) == 0
    assert found.count_explaining(0.95) == 1
    values, vectors = found.leading(3)
    assert (values == 0).all()
    assert is_orthonormal(vectors)


def test_groups_have_bases_of_their_own():
    rows = torch.cat([samples(400, 6, decay=3.0), samples(400, 6, decay=0.2)], dim=1)
    found = Spectrum(moments(rows, groups=2), "conv")
    assert (found.groups, found.width) == (2, 6)
    values, vectors = found.leading(6)
    for group, part in enumerate(rows.split(6, dim=1)):
        np.testing.assert_allclose(values[group], oracle(part).explained_variance_, rtol=1e-4)
    each = [Spectrum(moments(part), "conv").count_explaining(0.9) for part in rows.split(6, dim=1)]
    assert found.count_explaining(0.9) == max(each)
    assert vectors.shape == (2, 6, 6)


def test_rank_rules_read_it():
    found = Spectrum(moments(samples(300, 40)), "fc")
    assert Fixed(3).rank(found) == 3
    assert Fraction(0.25).rank(found) == 10
    assert ExplainedVariance(0.9).rank(found) == found.count_explaining(0.9)


def test_more_directions_than_channels_are_refused():
    with pytest.raises(ConfigError, match=r"41 directions .* 'fc', which has 40 channels"):
        Spectrum(moments(samples(100, 40)), "fc").leading(41)
    with pytest.raises(ConfigError, match="0 directions"):
        Spectrum(moments(samples(100, 40)), "fc").leading(0)


def test_questions_are_answered_once(monkeypatch):
    monkeypatch.setattr(eigenpairs, "EIGH_SIZE", 0)
    kept = moments(samples(800, 400, decay=2.0))
    calls = []
    monkeypatch.setattr(Covariance, "apply", lambda self, rows, group: calls.append(len(rows)) or rows @ matrix)
    matrix = kept.covariance()[0]
    found = Spectrum(kept, "fc")
    count = found.count_above(0.1)
    done = len(calls)
    found.leading(count)
    found.count_above(0.2)
    assert len(calls) == done


def test_directions_are_counted_without_their_vectors(monkeypatch):
    """Where it takes most of them: counts are those of a full solution, and vectors come when they are asked for."""
    monkeypatch.setattr(eigenpairs, "EIGH_SIZE", 0)
    rows = samples(600, WIDTH, decay=0.1)
    found, expected = Spectrum(moments(rows), "fc"), oracle(rows)
    monkeypatch.setattr(eigen, "full", None)
    assert found.count_explaining(0.9) == int((expected.explained_variance_ratio_.cumsum() < 0.9).sum()) + 1
    assert found.count_above(20.0) == int((expected.explained_variance_ > 20).sum())
    assert found.largest() == pytest.approx(expected.explained_variance_[0], rel=1e-6)
    monkeypatch.undo()
    values, vectors = found.leading(WIDTH)
    np.testing.assert_allclose(values[0], expected.explained_variance_, rtol=1e-5)
    assert is_orthonormal(vectors)


@settings(max_examples=30, deadline=None)
@given(decay=st.floats(0, 3), share=st.floats(0.05, 1), variance=st.floats(0, 30), seed=st.integers(0, 99))
def test_as_many_directions_as_are_counted_were_expected_or_more(decay, share, variance, seed):
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eigenpairs, "EIGH_SIZE", 0)
        found = Spectrum(moments(samples(90, 30, decay=decay)), "fc")
        assert found._at_least(share) <= found.count_explaining(share)
        assert found._at_least(1.0, variance) <= found.count_above(variance)


def test_a_flat_spectrum_is_known_to_take_most_directions(monkeypatch):
    monkeypatch.setattr(eigenpairs, "EIGH_SIZE", 0)
    found = Spectrum(moments(samples(20_000, 50, decay=0.0)), "fc")
    assert found._at_least(0.9) > 0.75 * 50
    assert found._at_least(1.0, 20.0) > 0.2 * 50
    assert found._at_least(1.0, 100.0) == 0


def test_a_basis_is_completed_once():
    found = Spectrum(moments(samples(20, 64)), "fc")
    first, again = found.leading(40), found.leading(40)
    assert all(mine is other for mine, other in zip(first, again, strict=True))
    assert is_orthonormal(first[1])
    torch.testing.assert_close(found.leading(50)[1][..., :40], first[1], rtol=0, atol=1e-12)


class TestSketch:
    @pytest.fixture(autouse=True)
    def _sketch_everything(self, monkeypatch):
        monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 0)
        monkeypatch.setattr(forms, "LARGEST_COVARIANCE", 0)

    def test_a_second_pass_refines(self):
        rows = samples(2000, 600, decay=1.5)
        expected = oracle(rows).explained_variance_[:20]
        first = moments(rows, options=SketchOptions(max_rank=40))
        second = first.refined().add(rows.view(1, 1, 2000, 600).mT)
        errors = [np.abs(Spectrum(m, "fc").leading(20)[0][0].numpy() / expected - 1).max() for m in (first, second)]
        assert errors[0] < 0.5
        assert errors[1] < 0.01
        assert errors[1] < errors[0] / 5

    def test_parts_add_up(self):
        rows = samples(900, 100)
        options = SketchOptions(max_rank=10)
        whole = moments(rows, options=options)
        parts = [moments(part, options=options) for part in rows.split(300)]
        merged = forms.merge(forms.merge(parts[0], parts[1], options), parts[2], options)
        assert merged.count == 900
        for mine, other in zip(merged.sums_about(whole.pilot.double()), whole.sums(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=0.05)
        a, b = Spectrum(merged, "fc").leading(5)[0], Spectrum(whole, "fc").leading(5)[0]
        torch.testing.assert_close(a, b, rtol=1e-4, atol=0)

    def test_different_test_vectors_do_not_add_up(self):
        rows = samples(300, 100)
        one, other = (moments(rows, options=SketchOptions(max_rank=10, seed=seed)) for seed in (0, 1))
        with pytest.raises(StatisticsError, match="passes=1"):
            one.merge(other)

    def test_more_directions_than_were_kept(self):
        found = Spectrum(moments(samples(900, 400, decay=0.1), options=SketchOptions(max_rank=8)), "fc1")
        with pytest.raises(StatisticsError, match=r"'fc1': the 40 directions .* larger max_rank"):
            found.count_explaining(0.95)
        with pytest.raises(StatisticsError, match="larger max_rank"):
            found.count_above(0.0)
        values, vectors = found.leading(100)
        assert (values[0, 40:] == 0).all()
        assert is_orthonormal(vectors)

    def test_total_variance_is_exact(self):
        rows = samples(900, 100)
        total = Spectrum(moments(rows, options=SketchOptions(max_rank=4)), "fc").total_variance
        torch.testing.assert_close(total[0], rows.double().var(0).sum(), rtol=1e-6, atol=0)

    def test_there_is_no_covariance(self):
        with pytest.raises(StatisticsError, match="only the leading directions are known"):
            moments(samples(300, 100)).covariance()


def test_samples_are_kept_where_they_are_few(monkeypatch):
    monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 0)
    rows = samples(50, 80)
    kept = moments(rows)
    assert isinstance(kept, Samples)
    np.testing.assert_allclose(kept.covariance()[0], np.cov(rows.double().numpy(), rowvar=False), atol=1e-5)


def test_copies_of_an_eigenvalue_in_kept_samples_are_all_counted(monkeypatch):
    """More copies than a block has rows: products in fp32 alone may not show them all."""
    monkeypatch.setattr(eigenpairs, "EIGH_SIZE", 0)
    count, width, copies = 1200, 1300, 70
    left = torch.randn(count, 150, dtype=torch.float64)
    left = torch.linalg.qr(left - left.mean(0)).Q
    right = torch.linalg.qr(torch.randn(width, 150, dtype=torch.float64)).Q
    values = torch.cat([torch.full((copies,), 5.0), torch.logspace(-2, -4, 150 - copies)]).double()
    rows = (left * (values * (count - 1)).sqrt()) @ right.T
    found = Spectrum(Samples(1, width, [rows]), "fc")
    assert found.count_above(1.0) == copies
    assert found._found.solvers  # found without all eigenpairs
