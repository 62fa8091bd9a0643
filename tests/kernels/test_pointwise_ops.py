"""The convolution by a fixed kernel is PyTorch's own, forward and back, and keeps nothing of its input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from kernels.conftest import ON_GPU
from pcn.kernels import pointwise_conv

STOCK = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
LAYOUTS = {
    "lines": ((2, 6, 9), torch.contiguous_format),
    "images": ((2, 6, 5, 4), torch.contiguous_format),
    "images, channels last": ((2, 6, 5, 4), torch.channels_last),
    "volumes": ((2, 6, 3, 4, 5), torch.contiguous_format),
    "volumes, channels last": ((2, 6, 3, 4, 5), torch.channels_last_3d),
}


def example(name: str, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    shape, layout = LAYOUTS[name]
    x = torch.randn(shape, dtype=dtype, device=device).contiguous(memory_format=layout)
    return x.requires_grad_(), torch.randn(3, shape[1], *[1] * (len(shape) - 2), dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_bits_and_layouts_are_those_of_pytorch(device: str, name: str, dtype: torch.dtype) -> None:
    x, kernel = example(name, dtype, device)
    found, expected = pointwise_conv(x, kernel), STOCK[x.dim()](x, kernel)
    coming = torch.randn_like(expected)
    gradients = (torch.autograd.grad(each, x, coming)[0] for each in (found, expected))
    for one, other in ((found, expected), tuple(gradients)):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_operators_are_registered_as_they_behave(name: str) -> None:
    x, kernel = example(name, torch.float32)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.pcn.pointwise_conv, (x, kernel), test_utils=checks)
    coming = pointwise_conv(x, kernel).detach()
    torch.library.opcheck(torch.ops.pcn.pointwise_conv_input, (coming, kernel), test_utils=checks[:3])


@pytest.mark.parametrize("name", LAYOUTS)
def test_gradcheck_and_that_gradients_have_gradients(name: str) -> None:
    x, kernel = example(name, torch.float64)
    assert torch.autograd.gradcheck(lambda x: pointwise_conv(x, kernel), x)
    assert torch.autograd.gradgradcheck(lambda x: pointwise_conv(x, kernel).pow(3), x)


def test_any_strides_and_no_images() -> None:
    x, kernel = example("images", torch.float64)
    for view in (x.mT, x[:, :, ::2], torch.stack([x, x], 1)[:, 0], x.flip(2), x[:0]):
        for given in (kernel, kernel.flip(0), torch.cat([kernel, kernel], 1)[:, :6]):
            found, expected = pointwise_conv(view, given), F.conv2d(view, given)
            torch.testing.assert_close(found, expected)
            coming = torch.randn_like(expected)
            gradients = (torch.autograd.grad(each, x, coming, retain_graph=True)[0] for each in (found, expected))
            torch.testing.assert_close(*gradients)


def test_autocast_casts_both_factors() -> None:
    x, kernel = example("images", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = pointwise_conv(x, kernel), F.conv2d(x, kernel)
        mixed = pointwise_conv(x.bfloat16(), kernel)
    assert found.dtype == mixed.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert gradient.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert pointwise_conv(x.double(), kernel.double()).dtype == torch.float64


def test_only_the_kernel_is_kept() -> None:
    x, kernel = example("images", torch.float32)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: kernel):
        pointwise_conv(x, kernel)
    assert [tensor.data_ptr() for tensor in kept] == [kernel.data_ptr()]


def test_flops_are_counted_as_those_of_pytorch() -> None:
    x, kernel = example("images", torch.float32)
    with FlopCounterMode(display=False) as ours:
        pointwise_conv(x, kernel).sum().backward()
    with FlopCounterMode(display=False) as stock:
        F.conv2d(x, kernel).sum().backward()
    assert ours.get_total_flops() == stock.get_total_flops() > 0
