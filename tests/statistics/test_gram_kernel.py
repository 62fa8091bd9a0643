"""The kernel's sums are those of fp64 up to fp32's rounding, whatever the block's shape, strides and means.

Where there is no CUDA device, Triton's interpreter runs the kernel, in a process that knows it from the start.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from pcn.statistics import pieces
from pcn.statistics.moments import Covariance
from spectra import moments, samples

gram_kernel = pytest.importorskip("pcn.statistics.gram_kernel", exc_type=ImportError)

CUDA = torch.cuda.is_available()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a CUDA device")]
ROUNDING = 1e-6
SHAPES = [(1, 1, 3, 1000), (3, 2, 7, 5), (2, 1, 64, 500), (2, 2, 65, 5), (40, 1, 100, 1), (2, 1, 300, 70)]


@pytest.fixture(scope="module")
def interpreter():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(int).result()
        yield pool


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="the device itself is tested")),
        pytest.param("cuda", marks=on_gpu),
    ]
)
def block_sums(request):
    """The sums of a block on the CPU, by the interpreter or by a GPU; they come back to the CPU."""
    if request.param == "cpu":
        pool = request.getfixturevalue("interpreter")
        return lambda block, pilot: pool.submit(gram_kernel.block_sums, block, pilot).result()

    def on_device(block, pilot):
        storage = block.as_strided((block.untyped_storage().nbytes() // block.itemsize,), (1,), 0).cuda()
        block = storage.as_strided(block.shape, block.stride(), block.storage_offset())
        return tuple(sums.cpu() for sums in gram_kernel.block_sums(block, pilot.cuda()))

    return on_device


def make_block(shape, layout):
    entries, groups, width, positions = shape
    if layout == "channels last":
        return torch.randn(entries, positions, groups, width).permute(0, 2, 3, 1)
    if layout == "sliced":
        return torch.randn(entries + 1, groups, width + 3, 2 * positions + 1)[1:, :, 1 : width + 1, 1::2]
    return torch.randn(shape)


def expected_sums(block, pilot):
    centred = block.double() - pilot.double().unsqueeze(-1)
    return centred.sum((0, 3)), torch.einsum("bgip,bgjp->gij", centred, centred)


def check(found, block, pilot):
    total, scatter = expected_sums(block, pilot)
    assert found[0].dtype == found[1].dtype == torch.float64
    assert torch.equal(found[1], found[1].mT)
    scale = scatter.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((found[0] - total).abs() <= ROUNDING * scale * (block.shape[0] * block.shape[3]) ** 0.5).all()
    assert ((found[1] - scatter).abs() <= ROUNDING * scale.unsqueeze(-1) * scale.unsqueeze(-2)).all()


@pytest.mark.parametrize("layout", ["positions last", "channels last", "sliced"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_shapes_and_strides(block_sums, shape, layout, mean):
    block = make_block(shape, layout)
    block += mean * torch.linspace(-1, 1, shape[2])[:, None]
    pilot = mean * torch.linspace(-1, 1, shape[2]).expand(shape[1:3]) + 0.5
    check(block_sums(block, pilot), block, pilot)


@pytest.mark.parametrize("layout", ["positions last", "channels last"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(block_sums, layout, dtype):
    block = make_block((2, 1, 48, 64), layout).to(dtype)
    for pilot in (torch.zeros(1, 48), torch.randn(1, 48)):
        check(block_sums(block, pilot), block, pilot)


def test_long_sums(block_sums):
    block, pilot = torch.rand(1, 1, 2, 33_003), torch.zeros(1, 2)
    check(block_sums(block, pilot), block, pilot)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (3, 1, 2, 0)], ids=str)
def test_nothing_adds_nothing(block_sums, shape):
    total, scatter = block_sums(torch.randn(shape), torch.ones(shape[1:3]))
    assert not total.any()
    assert not scatter.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_what_is_not_finite_shows(block_sums, value):
    block = torch.randn(2, 1, 20, 40)
    block[1, 0, 7, 3] = value
    _, scatter = block_sums(block, torch.zeros(1, 20))
    assert not torch.isfinite(scatter[0, 7, 7])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_moments_take_the_sums(monkeypatch, device):
    if device == "cpu":
        monkeypatch.setattr(gram_kernel, "block_sums", expected_sums)
    blocks, pilot = [torch.randn(3, 1, 5, 40, device=device) + 2 for _ in range(2)], torch.ones(1, 5, device=device)
    plain, kernel = Covariance(pilot), Covariance(pilot)
    for block in blocks:
        plain.add(block)
    monkeypatch.setattr("pcn.statistics.moments.suits_kernel", lambda block, pilot: True)
    for block in blocks:
        kernel.add(block)
    assert kernel.count == plain.count == 240
    torch.testing.assert_close(kernel.mean(), plain.mean(), rtol=1e-6, atol=0)
    torch.testing.assert_close(kernel.covariance(), plain.covariance(), rtol=1e-5, atol=1e-6)


def test_blocks_elsewhere_are_not_for_the_kernel(monkeypatch):
    monkeypatch.setattr(pieces, "KERNEL_SIZE", 0)
    assert not pieces.suits_kernel(torch.randn(4, 1, 8, 100), torch.zeros(1, 8))


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(pieces, "KERNEL_SIZE", 0)


def gpu(test):
    for mark in on_gpu:
        test = mark(test)
    return test


@gpu
@pytest.mark.parametrize(
    ("block", "suits"),
    [
        (torch.zeros(2, 1, 64, 1024), True),
        (torch.zeros(2, 1, 64, 1024, dtype=torch.bfloat16), True),
        (torch.zeros(1, 1, 64, 5), True),
        (torch.zeros(9, 1, 64, 4), False),
        (torch.zeros(1, 1, 513, 100), False),
        (torch.zeros(2, 1, 64, 1024, dtype=torch.float64), False),
    ],
    ids=["fp32", "bf16", "rows", "tiny images", "wide", "fp64"],
)
def test_which_blocks_are_for_the_kernel(any_size, monkeypatch, block, suits):
    pilot = torch.zeros(block.shape[1:3])
    assert pieces.suits_kernel(block.cuda(), pilot.cuda()) == suits
    monkeypatch.setattr(pieces, "KERNEL", False)
    assert not pieces.suits_kernel(block.cuda(), pilot.cuda())


@gpu
def test_tf32_does_not_reach_the_sums(any_size):
    rows = samples(4000, 256, decay=1.0)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        found = moments(rows.cuda()).covariance()[0].cpu()
    finally:
        torch.set_float32_matmul_precision(before)
    expected = torch.cov(rows.double().T)
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


@gpu
@pytest.mark.parametrize("shape", [(512, 1, 64, 1024), (512, 1, 128, 256), (512, 1, 256, 64)], ids=str)
def test_large_blocks(shape):
    block, pilot = torch.randn(shape, device="cuda").relu_(), torch.zeros(shape[1:3], device="cuda")
    assert pieces.suits_kernel(block, pilot)
    found = gram_kernel.block_sums(block, pilot)
    check(found, block, pilot)
    assert all(torch.equal(a, b) for a, b in zip(found, gram_kernel.block_sums(block, pilot), strict=True))


@gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
def test_taking_a_block_does_not_wait_for_the_device(any_size):
    block = torch.randn(64, 1, 64, 1024, device="cuda")
    found = Covariance(torch.zeros(1, 64, device="cuda")).add(block)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found.add(block)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.count == 2 * 64 * 1024


@gpu
@pytest.mark.parametrize("layout", ["rows", "channels first"])
def test_beyond_32_bits(layout):
    samples = 2**27 + 5  # times 16 channels: offsets of more than 2^31
    block = torch.zeros(1, 1, 16, samples, dtype=torch.bfloat16, device="cuda")
    if layout == "rows":
        block = block.view(1, 1, samples, 16).transpose(2, 3)
    block[..., -5:] = torch.randn(16, 5, device="cuda")
    pilot = torch.zeros(1, 16, device="cuda")
    check(gram_kernel.block_sums(block, pilot), block[..., -5:], pilot)
