"""On a CUDA device the statistics are those of a CPU, and nothing is left behind there either."""

import pytest
import torch
from torch import nn

from pcn.statistics import analyze, eigenpairs
from pcn.statistics.spectrum import Spectrum
from spectra import angle, moments, oracle, samples

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 32, 3, groups=2), nn.Flatten(), nn.Dropout(),
        nn.Linear(32 * 16, 4),
    )  # fmt: skip


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_the_same_as_on_a_cpu(layout, mean, monkeypatch):
    # In TF32 the model's own convolutions would lose more of a large mean than the statistics could.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = make_model().eval()
    batches = [torch.randn(64, 3, 8, 8) + mean for _ in range(2)]
    expected = analyze(model.double(), [batch.double() for batch in batches])
    found = analyze(model.float().cuda().to(memory_format=layout), batches)
    for name in expected.layers:
        assert found.samples(name) == expected.samples(name)
        scale = float(expected.spectrum(name).leading(1)[0].max())
        error = (found.covariance(name).cpu() - expected.covariance(name)).abs().max() / scale
        assert error < (1e-6 if mean == 0 else 1e-2)


def test_tf32_does_not_reach_the_sums():
    rows = samples(4000, 256, decay=1.0)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        found = moments(rows.cuda()).covariance()[0].cpu()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    expected = torch.cov(rows.double().T)
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize("count", [600, 3000], ids=["samples", "covariance"])
def test_leading_directions(count, monkeypatch):
    monkeypatch.setattr(eigenpairs, "EIGH_SIZE", 0)
    monkeypatch.setattr("pcn.statistics.forms.COVARIANCE_WIDTH", 100)
    rows = samples(count, 800, decay=1.5)
    found = Spectrum(moments(rows.cuda()), "fc")
    pca = oracle(rows)
    assert found.count_above(0.5) == int((pca.explained_variance_ > 0.5).sum())
    values, vectors = found.leading(12)
    torch.testing.assert_close(values[0].cpu(), torch.from_numpy(pca.explained_variance_[:12]), rtol=1e-6, atol=0)
    assert angle(vectors[0].cpu(), torch.from_numpy(pca.components_[:12].T)) < 1e-3


def test_random_numbers_and_buffers_come_back():
    model = make_model().cuda().train()
    state, buffers = torch.cuda.get_rng_state(), [b.clone() for b in model.buffers()]
    analyze(model, [torch.randn(8, 3, 8, 8)], mode="train")
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True))


def test_autocast():
    model = make_model().cuda()
    batch = torch.randn(64, 3, 8, 8)
    with torch.autocast("cuda", torch.bfloat16):
        found = analyze(model, [batch])
    assert found.covariance("6").dtype == torch.float64
    expected = analyze(model, [batch])
    torch.testing.assert_close(found.mean("6"), expected.mean("6"), rtol=0.05, atol=0.05)
