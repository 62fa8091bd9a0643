"""Principal component layers compute the explicit form: pad, centre, project, convolve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from explicit_form import Case, cases, channels_first, channels_last, distance, explicit
from pcn.nn import PCConv1d, PCConv2d, PCConv3d, PCLinear, PCModule, empty_like, from_layer


def output_and_gradients(y: Tensor, outer: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad(y, wanted, outer)]


@settings(max_examples=300)
@given(cases())
def test_output_and_gradients_equal_the_explicit_form(case: Case) -> None:
    layer = from_layer(case.layer, case.mean, case.truncated)
    x = case.x.requires_grad_()
    wanted = [x, layer.weight, layer.bias]
    y = explicit(x, layer.weight, layer.bias, case.mean, case.truncated, case.layer)
    outer = torch.randn_like(y)
    expected = output_and_gradients(y, outer, wanted)
    found = output_and_gradients(layer(x), outer, wanted)
    assert max(map(distance, found, expected)) < 1e-10


@given(cases())
def test_a_trained_basis_has_the_gradients_of_the_explicit_form(case: Case) -> None:
    layer = from_layer(case.layer, case.mean, case.truncated, train_basis=True)
    wanted = [case.x.requires_grad_(), *layer.parameters()]
    assert len(wanted) == 5
    y = explicit(case.x, layer.weight, layer.bias, layer.mean, layer.basis, case.layer)
    outer = torch.randn_like(y)
    expected = output_and_gradients(y, outer, wanted)
    assert max(map(distance, output_and_gradients(layer(case.x), outer, wanted), expected)) < 1e-10


@given(cases())
def test_full_rank_leaves_the_function_unchanged(case: Case) -> None:
    layer = from_layer(case.layer, case.mean, case.basis)
    assert distance(layer(case.x), case.stock_output()) < 1e-10


@given(cases())
def test_with_its_offset_any_rank_leaves_the_function_unchanged(case: Case) -> None:
    layer = from_layer(case.layer, case.mean, case.truncated, offset=True)
    x = case.x.requires_grad_()
    expected, found = case.stock_output(), layer(x)
    outer = torch.randn_like(expected)
    assert max(map(distance, *(output_and_gradients(y, outer, [x]) for y in (found, expected)))) < 1e-10
    assert not layer.offset_weight.requires_grad


@given(cases(), st.integers(1, 3))
def test_an_output_basis_expands_a_small_core(case: Case, output_rank: int) -> None:
    layer = empty_like(case.layer, case.rank, output_rank=output_rank)
    layer.reset_parameters()
    layer.mean.copy_(case.mean)
    core = explicit(case.x, layer.weight, torch.zeros(len(layer.weight)).double(), case.mean, layer.basis, case.layer)
    parts = channels_last(core, case.layer).chunk(case.groups, -1)
    pairs = zip(parts, layer.output_basis.chunk(case.groups), strict=True)
    expected = channels_first(torch.cat([s @ v.T for s, v in pairs], -1) + layer.bias, case.layer)
    assert distance(layer(case.x), expected) < 1e-10


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(("kind", "size"), [(PCConv1d, (4,)), (PCConv2d, (4, 5)), (PCConv3d, (3, 4, 5))])
def test_no_samples_give_no_outputs(kind: type, size: tuple[int, ...], mode: str) -> None:
    layer = kind(4, 6, 3, 2, padding=1, groups=2, padding_mode=mode)
    assert layer(torch.randn(0, 4, *size)).shape == (0, 6, *size)


def test_no_tokens_give_no_outputs() -> None:
    assert PCLinear(4, 6, 2)(torch.randn(3, 0, 4)).shape == (3, 0, 6)


def make(kind: type[nn.Module], **options: Any) -> tuple[nn.Module, PCModule, Tensor]:
    """A stock layer, the same at full rank, and an input whose mean is as large as its spread."""
    if kind is nn.Linear:
        stock, x = nn.Linear(32, 16, **options), torch.randn(64, 32) + 1
    else:
        stock, x = nn.Conv2d(32, 16, 3, padding=1, **options), torch.randn(4, 32, 7, 7) + 1
    basis = torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64))[0]
    return stock, from_layer(stock, torch.ones(32), basis), x


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv2d])
def test_single_precision(kind: type[nn.Module]) -> None:
    stock, layer, x = make(kind)
    assert distance(layer(x), stock(x)) < 1e-5


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv2d])
def test_autocast_rounds_like_the_stock_layer(kind: type[nn.Module]) -> None:
    stock, layer, x = make(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, plain = layer(x), stock(x)
    assert y.dtype == plain.dtype == torch.bfloat16
    assert distance(y.float(), stock(x)) < 0.02
    y.float().square().mean().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_under_autocast_rounded_weights_are_centred_with_what_they_were_rounded_to() -> None:
    stock, mean = nn.Conv2d(64, 32, 3, padding=1, bias=False), 10 * torch.rand(64)
    layer = from_layer(stock, mean, torch.linalg.qr(torch.randn(64, 64))[0])
    x = (mean[:, None, None] + torch.randn(64, 64, 6, 6)).bfloat16()
    exact = layer.double()(x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        error = layer.float()(x).double() - exact
    # Rounding averages out over samples, except where the correction belongs to other weights than those used.
    systematic = error[..., 1:-1, 1:-1].mean((0, 2, 3)).abs().max() / exact.abs().max()
    assert systematic < 5e-4


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv2d])
def test_a_model_in_bfloat16_runs_even_with_buffers_in_float32(kind: type[nn.Module]) -> None:
    stock, layer, x = make(kind, dtype=torch.float32)
    expected = stock(x)
    layer.weight.data, layer.bias.data = layer.weight.data.bfloat16(), layer.bias.data.bfloat16()
    assert layer.basis.dtype == torch.float32
    assert distance(layer(x.bfloat16()).float(), expected) < 0.03
    assert distance(layer.bfloat16()(x.bfloat16()).float(), expected) < 0.03
    with pytest.raises(RuntimeError, match=r"dtype|type"):  # a mistake that the stock layer refuses as well
        layer(x)


def test_channels_last_stays_channels_last() -> None:
    layer, x = PCConv2d(8, 6, 3, 4, padding=1), torch.randn(2, 8, 5, 5)
    y = layer(x.to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(y, layer(x), atol=1e-5)
    layer = layer.to(memory_format=torch.channels_last)
    assert torch.allclose(layer(x), y, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv2d])
def test_on_the_gpu(kind: type[nn.Module]) -> None:
    stock, layer, x = make(kind, device="cuda", dtype=torch.float64)
    x = x.double().cuda()
    assert distance(layer(x), stock(x)) < 1e-10
    stock, layer, x = stock.float(), layer.float(), x.float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert distance(layer(x).float(), stock(x).float()) < 0.03
    compiled = torch.compile(layer, fullgraph=True)
    assert distance(compiled(x), layer(x)) < 1e-4
