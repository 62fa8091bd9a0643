"""What a compiled model keeps from its forward pass for its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

from fusion.networks import IMAGES, Residual, transformed
from pcn.fusion import fuse_
from pcn.models.imagenet_resnet import Bottleneck

WIDTH, RANK = 16, 4


def kept(model: nn.Module, batch: Tensor) -> list[Tensor]:
    """What torch.compile has the forward pass hand to the backward pass, parameters and inputs aside."""
    found: list[Tensor] = []

    def partition(*arguments: Any, **keywords: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        forward, backward = min_cut_rematerialization_partition(*arguments, **keywords)
        given, taken = (graph.graph.find_nodes(op="placeholder") for graph in (forward, backward))
        known = {node.name for node in given}
        new = [node for node in taken if node.name not in known and not node.name.startswith("tangents")]
        found.extend(node.meta["val"] for node in new)
        return forward, backward

    def as_it_is(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return graph.forward

    backend = aot_autograd(fw_compiler=as_it_is, partition_fn=partition, decompositions=select_decomp_table)
    torch.compiler.reset()
    torch.compile(model, backend=backend, fullgraph=True)(batch)
    torch.compiler.reset()
    return found


class Sum(nn.Module):
    """A batch norm, a sum, ReLU and what is done with it."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.shortcut, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(torch.relu(self.bn(self.conv(x)) + self.shortcut(x)))


def size(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("form", ["fused", "factored"])
def test_it_is_less_than_the_parent_keeps(form: Any) -> None:
    parent = Residual(Bottleneck, WIDTH).double()
    model = transformed(Residual(Bottleneck, WIDTH), keep=("conv",), rank=RANK)
    batch = torch.randn(IMAGES, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    fuse_(model, batch, forms=form)
    assert size(kept(model, batch)) < size(kept(parent, batch))


def test_an_activation_that_only_a_fixed_basis_reads_is_not_kept() -> None:
    model = transformed(Residual(Bottleneck, WIDTH), keep=("conv",), rank=RANK)
    batch = torch.randn(IMAGES, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    fuse_(model, batch, forms="factored")
    images = [tensor for tensor in kept(model, batch) if tensor.dim() == 4 and tensor.shape[2:].numel() > 1]
    assert {tensor.shape[1] for tensor in images} == {RANK}  # projections; batch norms keep rows


@pytest.mark.parametrize("pool", [lambda y: y.mean((2, 3)), nn.AdaptiveAvgPool2d(1)])
def test_of_an_activation_that_is_only_averaged_a_mask_is_kept(pool: Callable[[Tensor], Tensor]) -> None:
    model = Sum(pool)
    batch = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    assert [chain.pooled for chain in fuse_(model, batch).chains] == [True]
    full = [tensor.dtype for tensor in kept(model, batch) if tensor.numel() == 2 * 8 * 6 * 6]
    assert sorted(full, key=str) == [torch.float32, torch.uint8]  # what is normalised, and the mask


@pytest.mark.parametrize("read", [lambda y: y.square().mean((2, 3)), nn.AdaptiveAvgPool2d(2)])
def test_of_an_activation_that_others_keep_no_mask_is_kept(read: Callable[[Tensor], Tensor]) -> None:
    model = Sum(read)
    batch = torch.randn(2, 3, 6, 6)
    assert [chain.pooled for chain in fuse_(model, batch).chains] == [False]
