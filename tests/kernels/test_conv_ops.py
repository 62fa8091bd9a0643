"""The convolution is what autograd, compilation, export, autocast and FLOP counting take it for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from pcn.kernels import narrow_conv, norm_project
from pcn.kernels.rows import as_rows

DOUBLE = torch.float64


def example(dtype: torch.dtype = DOUBLE) -> tuple[Tensor, Tensor]:
    x = torch.randn(2, 3, 5, 4, dtype=dtype).contiguous(memory_format=torch.channels_last)
    return x.requires_grad_(), torch.randn(4, 3, 3, 3, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0), (1, 2)])
def test_gradcheck(stride: int, padding: int) -> None:
    assert torch.autograd.gradcheck(lambda x, weight: narrow_conv(x, weight, stride, padding)[0], example())


def test_no_gradient_flows_through_the_moments() -> None:
    x, weight = example()
    y, mean, variance = narrow_conv(x, weight, 1, 1)
    assert y.requires_grad
    assert not mean.requires_grad
    assert not variance.requires_grad


@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_only_what_needs_a_gradient_gets_one(needed: tuple[bool, bool]) -> None:
    leaves = [tensor.detach().requires_grad_(need) for tensor, need in zip(example(), needed, strict=True)]
    with FlopCounterMode(display=False) as counter:
        y, *_ = narrow_conv(*leaves, 1, 1)
        y.sum().backward()
    assert counter.get_total_flops() == 2 * 2 * (2 * 5 * 4) * 4 * (3 * 9)
    assert [leaf.grad is not None for leaf in leaves] == list(needed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operators_are_registered_as_they_behave(dtype: torch.dtype) -> None:
    x, weight = example(dtype)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for stride, padding in ((1, 1), (2, 0)):
        operators = torch.ops.pcn
        torch.library.opcheck(operators.narrow_conv, (x, weight, stride, padding), test_utils=checks)
        y = narrow_conv(x, weight, stride, padding)[0].detach()
        given: dict[Any, tuple[Any, ...]] = {
            operators.narrow_conv_weight: (x.detach(), y, 3, 3, stride, padding),
            operators.narrow_conv_input: (y, weight.detach(), 5, 4, stride, padding),
        }
        for operator, arguments in given.items():
            torch.library.opcheck(operator, arguments, test_utils=checks[:3])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.scale = nn.Parameter(torch.rand(4))
        self.shift = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        y, mean, variance = narrow_conv(x, self.weight, 1, 1)
        norm = self.scale, self.shift, mean, (variance + 1e-5).rsqrt()
        return norm_project(as_rows(y), None, *norm, None, None, True, True, True)[0]


def test_with_batch_norm_gradients_are_those_of_the_stock_layers() -> None:
    net, (x, _) = Net().double(), example()
    normed = F.batch_norm(F.conv2d(x, net.weight, padding=1), None, None, net.scale, net.shift, training=True)
    expected, found = as_rows(normed.relu()), net(x)
    coming = torch.randn_like(found)
    torch.testing.assert_close(found, expected)
    leaves = x, *net.parameters()
    pairs = zip(*(torch.autograd.grad(each, leaves, coming) for each in (found, expected)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


def test_compiled_and_exported_it_computes_the_same() -> None:
    net, (x, _) = Net(), example(torch.float32)
    expected = net(x)
    leaves = x, net.weight
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    gradients = (torch.autograd.grad(each.square().sum(), leaves) for each in (compiled(x), expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    program = torch.export.export(net, (x.detach(),))
    assert any(node.target == torch.ops.pcn.narrow_conv.default for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x.detach()), expected)
    torch.compiler.reset()


def test_autocast_casts_both_factors() -> None:
    x, weight = example(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, mean, _ = narrow_conv(x, weight, 1, 1)
        (y.sum()).backward()
    assert y.dtype == torch.bfloat16
    assert mean.dtype == torch.float32
    assert x.grad is not None
    assert weight.grad is not None
    assert x.grad.dtype == weight.grad.dtype == torch.float32
    torch.testing.assert_close(y.float(), F.conv2d(x, weight, padding=1), rtol=0.05, atol=0.1)


def test_a_weight_of_another_dtype_is_cast_and_gets_its_own_gradient() -> None:
    x, weight = example(torch.float32)
    y, *_ = narrow_conv(x.bfloat16(), weight, 1, 1)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_products_are_counted_as_those_of_any_convolution() -> None:
    x, weight = example()
    counts = []
    for convolve in (lambda: narrow_conv(x, weight, 1, 1)[0], lambda: F.conv2d(x, weight, padding=1)):
        with FlopCounterMode(display=False) as counter:
            convolve().sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * (2 * 5 * 4) * 4 * (3 * 9)
