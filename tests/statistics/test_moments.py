"""Streamed moments equal those of scikit-learn's PCA on all samples at once, however they were cut and merged."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from pcn.errors import StatisticsError
from pcn.layers import CONVOLUTIONS, LINEAR
from pcn.statistics import forms, samples
from pcn.statistics.blocks import as_block
from pcn.statistics.eigen import full
from pcn.statistics.forms import SketchOptions
from pcn.statistics.moments import Covariance
from pcn.statistics.pieces import pilot_mean
from pcn.statistics.samples import Samples
from pcn.statistics.sketch import Sketch

OPTIONS = SketchOptions(max_rank=4)


def linear(rows, groups=1):
    return as_block(rows, LINEAR, groups)


def streamed(parts, groups=1):
    moments = forms.begin(linear(parts[0], groups), OPTIONS)
    for part in parts[1:]:
        moments = forms.add(moments, linear(part, groups), OPTIONS)
    return moments


@pytest.fixture
def narrow_limits(monkeypatch):
    """Make the three forms come up at widths that a test can afford."""
    monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 8)
    monkeypatch.setattr(forms, "LARGEST_COVARIANCE", 16)


@given(
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    groups=st.sampled_from([1, 2, 4]),
    mean=st.floats(-100, 100),
    seed=st.integers(0, 99),
)
def test_batches_add_up(cuts, groups, mean, seed):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n + 1, 8, generator=generator) + mean for n in cuts]
    rows = torch.cat(parts).double().numpy()
    moments = streamed(parts, groups)
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean().flatten(), rows.mean(0), rtol=1e-6, atol=1e-6)
    width = 8 // groups
    for group, covariance in enumerate(moments.covariance()):
        expected = np.cov(rows[:, group * width : (group + 1) * width], rowvar=False)
        np.testing.assert_allclose(covariance, expected, atol=2e-5)


@given(groups=st.sampled_from([1, 2]), same_pilot=st.booleans(), shift=st.floats(-1e3, 1e3))
def test_parts_merge_exactly(groups, same_pilot, shift):
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(30, 6, dtype=torch.float64, generator=generator) + shift
    second = torch.randn(20, 6, dtype=torch.float64, generator=generator)
    whole = streamed([first, second], groups)
    pilot = pilot_mean(linear(first, groups))
    one = Covariance(pilot).add(linear(first, groups))
    other = Covariance(pilot if same_pilot else pilot_mean(linear(second, groups))).add(linear(second, groups))
    merged = one.merge(other)
    assert merged.count == 50
    assert one.count == 30
    torch.testing.assert_close(merged.mean(), whole.mean(), rtol=1e-12, atol=1e-12)
    # rounding is relative to the squared distance of the two means
    torch.testing.assert_close(merged.covariance(), whole.covariance(), rtol=1e-12, atol=1e-14 * (1 + shift**2))
    if same_pilot:
        assert torch.equal(merged.scatter, one.scatter + other.scatter)


def test_one_pilot_means_plain_addition_on_any_order():
    rows = torch.randn(60, 5)
    pilot = rows.mean(0, keepdim=True)
    parts = [Covariance(pilot).add(linear(part)) for part in rows.split(20)]
    forward = parts[0].merge(parts[1]).merge(parts[2])
    backward = parts[0].merge(parts[1].merge(parts[2]))
    torch.testing.assert_close(forward.scatter, backward.scatter, rtol=1e-15, atol=0)
    for mine, summed in zip(forward.sums(), zip(*(p.sums() for p in parts), strict=True), strict=True):
        torch.testing.assert_close(mine, sum(summed), rtol=1e-15, atol=1e-14)


@pytest.mark.parametrize("mean", [1.0, 2.0, 100.0, 1e4])
def test_large_means_cost_no_precision(mean):
    basis = torch.linalg.qr(torch.randn(40, 40)).Q
    spread = torch.logspace(0, -1.5, 40)
    rows = (torch.randn(4000, 40) * spread) @ basis.T + mean * torch.rand(40)
    expected = PCA().fit(rows.double().numpy()).explained_variance_
    values = full(streamed(rows.split(500)).covariance())[0][0]
    np.testing.assert_allclose(values, expected, rtol=1e-3 if mean > 1e3 else 1e-7, atol=2e-7)
    naive = torch.linalg.eigvalsh(rows.T @ rows / 3999 - torch.outer(rows.mean(0), rows.mean(0)))
    assert (naive < 0).any() or mean < 1e3  # why the shift is there


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_precision_is_taken_as_it_is(dtype):
    rows = torch.randn(200, 6).to(dtype)
    expected = np.cov(rows.double().numpy(), rowvar=False)
    tolerance = 1e-13 if dtype is torch.float64 else 1e-6
    np.testing.assert_allclose(streamed(rows.split(50)).covariance()[0], expected, rtol=tolerance, atol=tolerance)


def test_layouts_agree():
    kind = CONVOLUTIONS[torch.nn.Conv2d]
    x = torch.randn(10, 6, 5, 7)
    plain, last = (forms.begin(as_block(t, kind, 2), OPTIONS) for t in (x, x.to(memory_format=torch.channels_last)))
    torch.testing.assert_close(plain.covariance(), last.covariance(), rtol=1e-6, atol=1e-6)


def test_constant_activations_have_no_variance():
    moments = streamed([torch.full((50, 4), 1234.5)] * 2)
    assert torch.equal(moments.variances(), torch.zeros(1, 4, dtype=torch.float64))
    assert torch.equal(moments.covariance(), torch.zeros(1, 4, 4, dtype=torch.float64))


def test_one_sample_has_a_mean_and_no_covariance():
    moments = streamed([torch.randn(1, 4)])
    assert moments.mean().shape == (1, 4)
    with pytest.raises(StatisticsError, match="1 sample was seen, but a covariance needs at least 2"):
        moments.covariance()
    assert moments.merge(streamed([torch.randn(1, 4)])).covariance().shape == (1, 4, 4)


@pytest.mark.parametrize("width", [4, 12, 20], ids=["covariance", "samples", "wide samples"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_numbers_that_are_not_finite_show(width, bad, narrow_limits):
    rows = torch.randn(6, width)
    assert streamed([rows, rows]).finite()
    rows[3, 1] = bad
    overflows_squares_only = bad == 1e30
    assert bool(streamed([rows, rows]).finite()) == (overflows_squares_only and width > 8)


def test_width_and_samples_choose_the_form(narrow_limits, monkeypatch):
    assert isinstance(streamed([torch.randn(5, 8)]), Covariance)
    assert isinstance(streamed([torch.randn(5, 12)] * 2), Samples)
    assert isinstance(streamed([torch.randn(5, 12)] * 3), Covariance)
    assert isinstance(streamed([torch.randn(10, 20)] * 2), Samples)
    assert isinstance(streamed([torch.randn(10, 20)] * 3), Sketch)
    assert isinstance(streamed([torch.randn(30, 20)]), Sketch)
    monkeypatch.setattr(samples, "SAMPLES_BYTES", 5 * 12 * 4)
    assert isinstance(streamed([torch.randn(5, 12)] * 2), Covariance)


@pytest.mark.parametrize("width", [8, 12, 20])
@pytest.mark.parametrize("counts", [(4, 5), (9, 9), (25, 4), (4, 25), (30, 30)])
def test_forms_merge_with_each_other(width, counts, narrow_limits):
    parts = [torch.randn(n, width) + 10 for n in counts]
    merged = forms.merge(*(streamed([part]) for part in parts), OPTIONS)
    rows = torch.cat(parts).double()
    assert merged.count == sum(counts)
    torch.testing.assert_close(merged.mean()[0], rows.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(merged.variances()[0], rows.var(0), rtol=1e-5, atol=1e-6)
    if not isinstance(merged, Sketch):
        torch.testing.assert_close(merged.covariance()[0], torch.cov(rows.T), rtol=1e-5, atol=1e-5)


def test_different_shapes_do_not_merge():
    with pytest.raises(StatisticsError, match=r"1 x 4 channels .* 2 x 2"):
        forms.merge(streamed([torch.randn(3, 4)]), streamed([torch.randn(3, 4)], groups=2), OPTIONS)


def test_samples_are_copies(narrow_limits):
    rows = torch.randn(5, 12)
    moments = streamed([rows])
    mean = rows.double().mean(0)
    rows.zero_()
    torch.testing.assert_close(moments.mean()[0], mean)


def test_autocast_does_not_reach_the_sums():
    rows = torch.randn(300, 8) * torch.logspace(0, -2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        moments = streamed(rows.split(100))
    torch.testing.assert_close(moments.covariance()[0], torch.cov(rows.double().T), rtol=1e-5, atol=1e-7)


@given(mean=st.floats(-100, 100), groups=st.sampled_from([1, 2]))
def test_about_zero_they_are_the_mean_of_squares_and_products(mean, groups):
    rows = torch.randn(60, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + mean
    moments = streamed(rows.split(20), groups).about_zero()
    assert torch.equal(moments.mean(), torch.zeros(groups, 8 // groups, dtype=torch.float64))
    for group, part in enumerate(rows.split(8 // groups, 1)):
        torch.testing.assert_close(moments.covariance()[group], part.T @ part / 59, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moments.variances().flatten(), rows.square().sum(0) / 59, rtol=1e-9, atol=1e-9)


def test_so_are_those_of_wide_activations(narrow_limits):
    rows = torch.randn(12, 16, dtype=torch.float64) + 4
    kept = streamed([rows])
    assert isinstance(kept, Samples)
    about = kept.about_zero()
    expected = rows.T @ rows / 11
    torch.testing.assert_close(about.covariance()[0], expected)
    torch.testing.assert_close(about.apply(torch.eye(16, dtype=torch.float64), 0), expected)
    assert not torch.allclose(kept.covariance()[0], expected)  # which stays as it was

    rows = torch.randn(400, 24, dtype=torch.float64) * torch.tensor([9.0, 8, 7, *[0.01] * 21]).double() + 4
    sketch = streamed(rows.split(100))
    assert isinstance(sketch, Sketch)
    values = sketch.about_zero().leading()[0][0, :4]
    torch.testing.assert_close(values, torch.linalg.eigvalsh(rows.T @ rows / 399).flip(0)[:4], rtol=1e-6, atol=0)


def test_a_sketch_that_was_refined_about_the_mean_holds_the_mean_s_own_direction_too(narrow_limits):
    """Its test vectors lie along what varies, which tells next to nothing of a mean that points elsewhere."""
    turn = torch.linalg.qr(torch.randn(24, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    mean = 6 * turn[:, 3]
    rows = torch.randn(400, 3, dtype=torch.float64) * torch.tensor([3.0, 2, 1]).double() @ turn[:, :3].T + mean
    sketch = streamed(rows.split(100))
    assert isinstance(sketch, Sketch)
    about = sketch.refined().add(as_block(rows, LINEAR, 1)).about_zero()
    values, vectors = about.leading()
    expected = torch.linalg.eigh(rows.T @ rows / 399)
    torch.testing.assert_close(values[0, :4], expected[0].flip(0)[:4])
    torch.testing.assert_close((vectors[0, :, :4] * expected[1].flip(1)[:, :4]).sum(0).abs(), torch.ones(4).double())
    torch.testing.assert_close(about.variances()[0], rows.square().sum(0) / 399)


@pytest.mark.parametrize("count", [12, 400])
def test_parts_about_zero_add_up_to_the_whole_about_zero(narrow_limits, count):
    rows = torch.randn(count, 16, dtype=torch.float64) + 4
    whole, *parts = (streamed([each]).about_zero() for each in (rows, *rows.split(count // 2)))
    torch.testing.assert_close(parts[0].merge(parts[1]).variances(), whole.variances())
