"""The kernels of convolutions compute what PyTorch's own do, and the moments of what comes out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from kernels import interpreted
from kernels.conftest import ON_GPU
from pcn.errors import ConfigError
from pcn.kernels import conv_reference
from pcn.kernels.conv_reference import geometry_of
from pcn.kernels.launch import CHOICES, STOCK, Choices, Launch
from pcn.kernels.magnitude import at_rows
from pcn.kernels.reference import batch_moments
from pcn.kernels.rows import as_rows

ROUNDING = {torch.float32: 3e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}  # the interpreter truncates to bf16
STAGE = (2, 16, 8, 8, 64, 3, 1, 1)  # images, channels, height, width, filters, kernel, stride, padding
Run = Callable[..., Any]
Sizes = tuple[int, int, int, int, int, int, int, int]


def make(sizes: Sizes, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor, int, int]:
    images, channels, height, width, filters, kernel, stride, padding = sizes
    x = torch.randn(images, channels, height, width) + 0.5
    return x.to(dtype), torch.randn(filters, channels, kernel, kernel).to(dtype), stride, padding


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal to the dtype's rounding, measured by the largest number of the tensor."""
    assert found.shape == expected.shape
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=ROUNDING[dtype] * max(scale, 1e-3))


def exact(x: Tensor, weight: Tensor, stride: int, padding: int, d_y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch's own convolution in fp64, and its gradients."""
    x, weight = (tensor.detach().double().requires_grad_() for tensor in (x, weight))
    y = F.conv2d(x, weight, stride=stride, padding=padding)
    return y.detach(), *torch.autograd.grad(y, (x, weight), d_y.double())


def check(run: Run, gradients: Run, sizes: Sizes, dtype: torch.dtype) -> None:
    x, weight, stride, padding = make(sizes, dtype)
    y, mean, variance = run("narrow_conv", x, weight, stride, padding)
    d_y = torch.randn_like(y)
    expected, *expected_gradients = exact(x, weight, stride, padding, d_y)
    close(y, expected, dtype)
    assert y.permute(0, 2, 3, 1).is_contiguous()
    torch.testing.assert_close((mean, variance), batch_moments(as_rows(y)), rtol=1e-4, atol=1e-5)
    leaves = x.requires_grad_(), weight.requires_grad_()
    found = gradients("narrow_conv", (*leaves, stride, padding), (d_y, None, None))
    for one, another in zip(found, expected_gradients, strict=True):
        assert one.dtype == dtype
        close(one, another, dtype)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("sizes", [STAGE, (3, 5, 7, 9, 20, 3, 2, 1)], ids=str)
def test_outputs_moments_and_gradients(run: Run, gradients: Run, sizes: Sizes, dtype: torch.dtype) -> None:
    check(run, gradients, sizes, dtype)


@st.composite
def odd_sizes(draw: st.DrawFn) -> Sizes:
    kernel, padding = draw(st.sampled_from((1, 3, 5))), draw(st.integers(0, 2))
    side = st.integers(max(1, kernel - 2 * padding), 9)
    channels, filters = draw(st.integers(1, 40)), draw(st.integers(1, 70))
    return draw(st.integers(1, 3)), channels, draw(side), draw(side), filters, kernel, draw(st.integers(1, 2)), padding


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=odd_sizes(), dtype=st.sampled_from(list(ROUNDING)))
def test_odd_sizes(run: Run, gradients: Run, sizes: Sizes, dtype: torch.dtype) -> None:
    check(run, gradients, sizes, dtype)


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        (STAGE, torch.bfloat16),
        ((1, 12, 9, 5, 20, 3, 1, 0), torch.float16),
        ((1, 48, 2, 3, 70, 3, 1, 1), torch.float16),
        ((3, 20, 5, 8, 64, 5, 1, 2), torch.float16),  # products that are moved by two, the last tile not full
        ((1, 6, 40, 4, 96, 3, 1, 1), torch.float16),
    ],
    ids=str,
)
def test_every_launch_computes_the_same(call: Run, sizes: Sizes, dtype: torch.dtype) -> None:
    x, weight, stride, padding = make(sizes, dtype)
    geometry = geometry_of(x.shape, weight.shape, stride, padding)
    d_y = torch.randn(len(x), geometry.filters, geometry.out_height, geometry.out_width).to(dtype)
    y, d_x, d_weight = exact(x, weight, stride, padding, d_y)
    found = call(interpreted.convolutions, x, weight, d_y, stride, padding)
    assert all(found.values())
    from pcn.kernels.conv_launches import input_launches

    assert any(launch.shifted for launch in input_launches(geometry, x)) == (sizes[3] in (4, 8))
    for one, mean, variance in found["forward"]:
        close(one, y, dtype)
        torch.testing.assert_close((mean, variance), batch_moments(as_rows(one)), rtol=1e-4, atol=1e-5)
    for name, expected in {"input": d_x, "weight": d_weight}.items():
        for (one,) in found[name]:
            close(one, expected, dtype)


def test_a_large_mean_costs_no_digits(run: Run) -> None:
    """Nor does it where many programs share the positions."""
    x = torch.randn(40, 3, 5, 5)
    x[:, 0] = 1e4
    weight = torch.randn(6, 3, 1, 1)
    y, mean, variance = run("narrow_conv", x, weight, 1, 0)
    expected, expected_variance = batch_moments(as_rows(y).double())
    torch.testing.assert_close(mean.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance.double(), expected_variance, rtol=1e-5, atol=1e-5)


def test_any_layout_is_taken(run: Run) -> None:
    x, weight, *rest = make(STAGE)
    expected = run("narrow_conv", x, weight, *rest)
    last = x.contiguous(memory_format=torch.channels_last), weight.contiguous(memory_format=torch.channels_last)
    spread = torch.stack([x, x], 4)[..., 0], weight.flip(0)
    for one, another in zip(run("narrow_conv", *last, *rest), expected, strict=True):
        assert torch.equal(one, another)
    for one, another in zip(run("narrow_conv", *spread, *rest), expected, strict=True):
        torch.testing.assert_close(one, another.flip(0 if another.dim() == 1 else 1))


def test_no_images(run: Run, gradients: Run) -> None:
    x, weight, *rest = make(STAGE)
    x = x[:0]
    y, mean, variance = run("narrow_conv", x, weight, *rest)
    assert y.shape == (0, 64, 8, 8)
    assert mean.isnan().all()
    assert variance.isnan().all()
    leaves = x.requires_grad_(), weight.requires_grad_()
    d_x, d_weight = gradients("narrow_conv", (*leaves, *rest), (y, None, None))
    assert d_x.shape == x.shape
    assert d_weight.shape == weight.shape
    assert not d_weight.any()


def test_the_same_images_give_the_same_bits(run: Run) -> None:
    x, weight, *rest = make((9, 5, 9, 7, 20, 3, 1, 1))
    d_y = torch.randn(9, 20, 9, 7).half()
    first, second = (run("narrow_conv", x, weight, *rest) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    first, second = (run("narrow_conv_weight", x, d_y, 3, 3, *rest) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_what_it_reaches_in_pytorch(run: Run, value: float) -> None:
    x, weight, *rest = make(STAGE)
    x[1, 3, 4, 4] = value
    y, mean, _ = run("narrow_conv", x, weight, *rest)
    assert torch.equal(y.isfinite(), F.conv2d(x.float(), weight.float(), stride=1, padding=1).isfinite())
    assert not mean.isfinite().any()


for_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_GPU)])


@for_gpu
@pytest.mark.parametrize(
    "sizes", [(64, 3, 32, 32, 64), (64, 16, 32, 32, 64), (64, 32, 16, 16, 128), (64, 64, 8, 8, 256)], ids=str
)
def test_every_launch_at_the_sizes_of_a_network(device: str, sizes: tuple[int, int, int, int, int]) -> None:
    x, weight, *rest = make((*sizes, 3, 1, 1), torch.bfloat16)
    x, weight = x.to(device), weight.to(device)
    d_y = torch.randn(sizes[0], sizes[4], *sizes[2:4], device=device).bfloat16()
    y, d_x, d_weight = exact(x, weight, *rest, d_y)
    found = interpreted.convolutions(x, weight, d_y, *rest)
    for name, expected in {"forward": y, "input": d_x, "weight": d_weight}.items():
        for one, *_ in found[name]:
            close(one, expected, torch.bfloat16)


def test_few_products_are_under_way_at_once() -> None:
    """Of two tiles, at most the seven that a Hopper GPU can count."""
    pytest.importorskip("triton")
    from pcn.kernels.conv_launches import WEIGHT, chunks
    from pcn.kernels.conv_weight_kernel import _groups

    for channels in (1, 5, 16, 24, 32, 64, 100, 256):
        for kernel in (1, 3, 5, 7):
            geometry = geometry_of((1, channels, 9, 9), (128, channels, kernel, kernel), 1, 3)
            for launch in WEIGHT:
                depth, rest = chunks(launch, geometry)
                number, groups, rest = _groups(geometry, launch, depth, rest)
                assert 2 * (number + bool(rest)) <= 7
                assert groups * (number * depth) + rest >= geometry.patch
                assert launch.columns * (number * depth + rest) <= 32 * launch.warps * 160


@for_gpu
def test_huge_batches(device: str) -> None:
    """More than 2^31 elements: the last images are as right as the first."""
    from pcn.kernels import narrow_conv, narrow_conv_input, narrow_conv_weight

    count = 2**17 + 3
    x = torch.zeros(count, 32, 32, 16, dtype=torch.bfloat16, device=device).permute(0, 3, 1, 2)
    x[-3:] = torch.randn(3, 16, 32, 32, device=device)
    weight = torch.randn(64, 16, 3, 3, dtype=torch.bfloat16, device=device)
    y, mean, _ = narrow_conv(x, weight, 1, 1)
    end = narrow_conv(x[-3:], weight, 1, 1)[0]
    torch.testing.assert_close(y[-3:], end, rtol=2e-2, atol=0.1)
    torch.testing.assert_close(mean, end.float().sum((0, 2, 3)) / (count * 1024), rtol=1e-3, atol=1e-9)
    d_weight = narrow_conv_weight(x[-3:], end, 3, 3, 1, 1)
    torch.testing.assert_close(narrow_conv_weight(x, y, 3, 3, 1, 1), d_weight, rtol=2e-2, atol=1.0)
    d_x = narrow_conv_input(end, weight, 32, 32, 1, 1)
    torch.testing.assert_close(narrow_conv_input(y, weight, 32, 32, 1, 1)[-3:], d_x, rtol=2e-2, atol=1.0)


@for_gpu
def test_tuning_finds_a_way_for_each_of_the_three(device: str, tmp_path: Any) -> None:
    from pcn.kernels import narrow_conv, tuning

    x, weight, *rest = (each.to(device) if isinstance(each, Tensor) else each for each in make(STAGE, torch.bfloat16))
    weight.requires_grad_()
    x.requires_grad_()
    before = dict(CHOICES.found)
    with tuning(tmp_path / "launches.json"):
        y, _, _ = narrow_conv(x, weight, *rest)
        y.sum().backward()
    new = {key for key in CHOICES.found.keys() - before.keys() if " conv" in key}  # beside PyTorch's, moments are timed
    assert {key.split("conv")[1].split()[0] for key in new} >= {"_weight", "_input"}
    assert len(new) == 3
    CHOICES.found = before


def test_what_pytorch_has_is_remembered_like_a_launch(tmp_path: Any) -> None:
    kept, fresh = Choices(), Choices()
    kept.found = {"a": STOCK, "b": Launch(64, 64, depth=16, per_processor=2, kept=True, near=True)}
    kept.save(tmp_path / "launches.json")
    fresh.load(tmp_path / "launches.json")
    assert fresh.found == kept.found
    assert fresh.launch("a", 64, [Launch(16, 16), STOCK], lambda launch: launch == STOCK)
    assert not fresh.launch("a", 64, [Launch(16, 16)], lambda launch: launch == STOCK)  # no longer among the candidates


def test_what_was_timed_can_be_timed_anew(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pcn.kernels import tuning

    monkeypatch.setattr(CHOICES, "found", {"a": STOCK, "b": STOCK})
    with tuning(tmp_path / "launches.json", anew=True):
        assert CHOICES.found == {}
        CHOICES.found["a"] = Launch(16, 16)
    assert CHOICES.found == {"a": Launch(16, 16), "b": STOCK}
    with tuning(tmp_path / "launches.json", anew=True):
        assert CHOICES.found == {"a": Launch(16, 16)}  # by the file: what was not timed has its turn yet


def test_processes_can_share_out_what_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from pcn.kernels import launch, tuning

    choices = Choices()
    monkeypatch.setattr(launch, "CHOICES", choices)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(launch, "_time_ms", lambda run, candidate: candidate.warps)
    candidates = [Launch(16, 16, warps=8), Launch(16, 16, warps=2)]
    with tuning(tmp_path / "launches.json", only=lambda key: key.endswith("b")):
        used = [choices.run(key, 64, candidates, torch.device("cuda"), lambda each: each.warps) for key in "ab"]
        kept = Choices()
        kept.load(tmp_path / "launches.json")  # at once: what comes later may fail
    assert used == [8, 2]
    assert kept.found == choices.found == {at_rows("GPU b", 64): candidates[1]}


def test_images_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match="3 channels"):
        geometry_of((1, 3, 8, 8), (4, 5, 3, 3), 1, 1)
    with pytest.raises(ConfigError, match="smaller than the kernel"):
        geometry_of((1, 3, 2, 8), (4, 3, 3, 3), 1, 0)


def test_images_beyond_32_bits_are_left_to_pytorch() -> None:
    pytest.importorskip("triton")
    from pcn.kernels.conv_launches import forward_launches, weight_launches

    vast, half = geometry_of((1, 64, 2**13, 2**13), (16, 64, 3, 3), 1, 1), torch.empty(0).half()
    assert forward_launches(vast, half) == weight_launches(vast, half) == [STOCK]


def test_exact_products_of_fp32_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from pcn.kernels import conv_launches

    geometry, x = geometry_of((1, 16, 8, 8), (64, 16, 3, 3), 1, 1), torch.empty(0)
    for precision, count in {"ieee": 1, "tf32": len(conv_launches.AHEAD) + 1}.items():
        monkeypatch.setattr(conv_launches, "precision", lambda _, precision=precision: precision)
        assert len(conv_launches.forward_launches(geometry, x)) == count
        assert conv_launches.forward_launches(geometry, x.half())[-1] == STOCK


def test_the_reference_is_what_autograd_finds() -> None:
    x, weight, stride, padding = make((2, 3, 7, 6, 5, 3, 2, 1), torch.float32)
    y, mean, variance = conv_reference.narrow_conv(x, weight, stride, padding)
    d_y = torch.randn_like(y)
    _, d_x, d_weight = exact(x, weight, stride, padding, d_y)
    torch.testing.assert_close((mean, variance), batch_moments(as_rows(y)))
    close(conv_reference.narrow_conv_input(d_y, weight, 7, 6, 2, 1), d_x, torch.float32)
    close(conv_reference.narrow_conv_weight(x, d_y, 3, 3, 2, 1), d_weight, torch.float32)
