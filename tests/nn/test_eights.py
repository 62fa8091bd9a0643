"""Where a device wants channels in eights, or in more, zeros make up what is missing; nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pcn.costs.count import flops_per_sample
from pcn.fusion import fuse_
from pcn.fusion.switch import everywhere as fused_everywhere
from pcn.nn import PCConv1d, PCConv2d, PCConv3d, PCLinear, eights
from pcn.nn.eights import cut, in_eights, wanted
from pcn.nn.functional import CONVOLUTIONS
from pcn.plans.plan import Form

SIZES = st.integers(1, 20)
KINDS: list[tuple[type[Any], int]] = [(PCConv1d, 1), (PCConv2d, 2), (PCConv3d, 3)]


@pytest.fixture
def everywhere() -> Iterator[None]:
    """Have this device want eights too."""
    eights.DEVICES.add("cpu")
    yield
    eights.DEVICES.discard("cpu")


@given(SIZES, SIZES, st.integers(1, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_zeros_change_nothing(everywhere: None, channels: int, filters: int, spatial: int) -> None:
    x, weight = (torch.randn(n, channels, *[k] * spatial, dtype=torch.float64) for n, k in ((2, 4), (filters, 3)))
    bias = torch.randn(filters, dtype=torch.float64)
    made = in_eights(x, weight, bias, torch.bfloat16)
    assert {size % 8 for size in (made[0].shape[1], *made[1].shape[:2], len(made[2]))} == {0}  # type: ignore[arg-type]
    run = CONVOLUTIONS[spatial]
    torch.testing.assert_close(run(*made)[:, :filters], run(x, weight, bias))
    assert not run(*made)[:, filters:].any()


@given(st.integers(1, 300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_convolution_of_several_taps_gets_more(everywhere: None, count: int) -> None:
    of_one, of_nine = (wanted(count, torch.device("cpu"), torch.float16, taps) for taps in (1, 9))
    assert of_one == -(-count // 8) * 8 <= of_nine
    assert of_nine % (32 if 16 < count <= 128 else 8) == 0
    assert of_nine < count + 32


def test_a_projection_has_as_many_channels_as_the_convolution_behind_it_wants(everywhere: None) -> None:
    x, layer = torch.randn(2, 30, 6, 6).half(), PCConv2d(30, 20, 3, rank=17).half()
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_flop_counts()["Global"][torch.ops.aten.convolution] == 2 * 2 * (36 * 32 * 32 + 16 * 32 * 32 * 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_16_bit_numbers_on_a_gpu_are_touched(dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 5, 4), torch.randn(3, 5, 3)
    assert in_eights(x, weight, None, dtype) == (x, weight, None)


@pytest.mark.parametrize(("kind", "spatial"), KINDS)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("more", [{}, {"output_rank": 3}, {"offset": True}, {"groups": 2, "output_rank": None}])
@pytest.mark.parametrize("samples", [(2,), ()])
def test_a_layer_computes_the_same(
    everywhere: None, kind: type[Any], spatial: int, mode: str, more: dict[str, Any], samples: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    layer = kind(6, 10 if "groups" in more else 5, 3, 3, padding=1, padding_mode=mode, **more).half()
    for tensor in layer.buffers():
        nn.init.normal_(tensor, std=0.5)
    x = torch.randn(*samples, 6, *[4] * spatial).half()
    found, expected = (grown(layer, x, eight) for eight in (True, False))
    assert found[0].is_contiguous()  # whoever reads it may view it
    for one, another in zip(found, expected, strict=True):
        assert one.shape == another.shape
        torch.testing.assert_close(one, another, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("more", [{}, {"output_rank": 3}, {"offset": True}])
def test_a_dense_layer_computes_the_same(everywhere: None, more: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = PCLinear(6, 5, 3, **more).half()
    for tensor in layer.buffers():
        nn.init.normal_(tensor, std=0.5)
    x = torch.randn(2, 4, 6).half()
    found, expected = (grown(layer, x, eight) for eight in (True, False))
    for one, another in zip(found, expected, strict=True):
        assert one.shape == another.shape
        torch.testing.assert_close(one, another, rtol=2e-2, atol=2e-2)


def test_a_dense_layer_multiplies_by_eights(everywhere: None) -> None:
    with FlopCounterMode(display=False) as counter:
        PCLinear(6, 5, 3).half()(torch.randn(4, 6).half())
    assert counter.get_total_flops() == 2 * 4 * (6 * 8 + 8 * 5)


def test_operations_are_counted_as_if_there_were_none_of_it(everywhere: None) -> None:
    model, x = nn.Sequential(PCConv2d(10, 20, 3, rank=5), nn.Flatten(), PCLinear(320, 5, 3)).half(), (2, 10, 6, 6)
    found = flops_per_sample(model, torch.randn(x).half())
    eights.DEVICES.discard("cpu")
    assert found == flops_per_sample(model, torch.randn(x).half())


@pytest.mark.parametrize("form", ["factored", "fused"])
def test_a_fused_dense_layer_multiplies_by_eights_too(everywhere: None, form: Form) -> None:
    model, x = nn.Sequential(nn.Identity(), PCLinear(6, 5, 3)).half(), torch.randn(4, 6).half()
    with fused_everywhere():
        fuse_(model, x, forms=form)
        with FlopCounterMode(display=False) as counter:
            model(x)
    assert counter.get_total_flops() == 2 * 4 * (6 * 8 + 8 * 5)


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize("channels", [9, 15, 17, 24, 32])
@pytest.mark.parametrize("form", [None, "factored", "folded"])
def test_an_input_that_does_not_fit_is_refused(everywhere: None, eight: bool, channels: int, form: Form | None) -> None:
    model = nn.Sequential(nn.Identity(), PCConv2d(10, 6, 3, rank=5)).half()
    with fused_everywhere():
        if form is not None:
            fuse_(model, torch.randn(2, 10, 8, 8).half(), forms=form)
        (eights.DEVICES.add if eight else eights.DEVICES.discard)("cpu")
        with pytest.raises(RuntimeError, match="channels"):
            model(torch.randn(2, channels, 8, 8).half())


def grown(layer: nn.Module, x: Tensor, eight: bool) -> list[Tensor]:
    """A layer's output and gradients."""
    (eights.DEVICES.add if eight else eights.DEVICES.discard)("cpu")
    x = x.clone().requires_grad_()
    y = layer(x)
    coming = torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], coming)]


@pytest.mark.parametrize(
    ("kind", "spatial", "more"),
    [
        (PCConv1d, 1, {}),
        (PCConv2d, 2, {}),
        (PCConv2d, 2, {"dilation": 2, "padding": 2}),
        (PCConv2d, 2, {"output_rank": 18}),
        (PCConv2d, 2, {"padding_mode": "circular"}),
        (PCConv3d, 3, {}),
    ],
)
@pytest.mark.parametrize("form", ["factored", "folded", "fused"])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_rank_between_eights_and_thirty_twos_is_handed_over(
    everywhere: None, kind: type[Any], spatial: int, more: dict[str, Any], form: Form, pooled: bool
) -> None:
    torch.manual_seed(0)
    norms = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
    pools = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
    layer = kind(24, 20, 3, rank=20, **{"padding": 1, **more})
    for tensor in layer.buffers():
        nn.init.normal_(tensor, std=0.2)
    between = [pools[spatial](1)] if pooled else []  # what stands between, so that the layer projects its input itself
    before = [norms[spatial](24), nn.ReLU(), *between]
    model = nn.Sequential(*before, layer, norms[spatial](20), nn.ReLU())
    x = torch.randn(4, 24, *[4] * spatial)
    with fused_everywhere(), torch.autocast("cpu", torch.float16):
        fuse_(model, x, forms=form)
        found, expected = (grown(model, x, eight) for eight in (True, False))
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another, rtol=2e-2, atol=2e-2 * float(another.abs().max()))


@pytest.mark.parametrize("form", ["factored", "folded", "fused"])
def test_a_fused_network_computes_the_same(everywhere: None, form: Form) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 10, 3), nn.BatchNorm2d(10), nn.ReLU(), PCConv2d(10, 6, 3, rank=5), nn.BatchNorm2d(6), nn.ReLU()
    )
    x = torch.randn(4, 3, 8, 8)
    with fused_everywhere(), torch.autocast("cpu", torch.float16):
        fuse_(model, x, forms=form)
        found, expected = (grown(model, x, eight) for eight in (True, False))
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_gpu_takes_eights(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    layer = PCConv2d(60, 50, 3, rank=20, padding=1).bfloat16()
    for tensor in layer.buffers():
        nn.init.normal_(tensor, std=0.1)
    x = torch.randn(4, 60, 8, 8).bfloat16().contiguous(memory_format=layout)
    made = in_eights(x.cuda(), torch.randn(50, 60, 3, 3, device="cuda").bfloat16(), None, torch.bfloat16)
    assert (made[0].shape[1], *made[1].shape[:2]) == (64, 64, 64)
    expected = grown(layer.double(), x.double(), False)
    found = grown(layer.bfloat16().cuda(), x.cuda(), False)
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu().double(), another, rtol=2e-2, atol=2e-2 * float(another.abs().max()))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_is_cut_and_its_gradient_keep_the_layout(layout: torch.memory_format) -> None:
    """A convolution's backward pass copies a gradient of another layout before it begins."""
    y = torch.randn(2, 64, 4, 4).contiguous(memory_format=layout).requires_grad_()
    left = cut(y, 1, 50)
    gradient = torch.randn(2, 50, 4, 4).contiguous(memory_format=layout)
    (found,) = torch.autograd.grad(left, y, gradient)
    assert left.is_contiguous(memory_format=layout)
    assert found.is_contiguous(memory_format=layout)
    assert torch.equal(left, y[:, :50])
    assert torch.equal(found[:, :50], gradient)
    assert not found[:, 50:].any()
