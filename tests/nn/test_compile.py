"""Principal component layers go through torch.compile and torch.export in one graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pcn.nn import PCConv2d, PCLinear


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def small_network() -> nn.Sequential:
    return nn.Sequential(
        PCConv2d(3, 8, 3, 2, padding=1),
        nn.ReLU(),
        PCConv2d(8, 8, 2, 2, padding="same", groups=2, offset=True, kernel_rank=3),
        PCConv2d(8, 8, 3, 4, padding=1, padding_mode="reflect", output_rank=4, kernel_rank=2),
        nn.Flatten(),
        PCLinear(128, 5, 6),
    )


@pytest.mark.parametrize("autocast", [False, True])
def test_compiles_into_one_graph_with_the_same_gradients(autocast: bool) -> None:
    model, x = small_network(), torch.randn(2, 3, 4, 4)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    results = []
    for run in (model, compiled):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            y = run(x)
        y.float().square().sum().backward()
        results.append([y.float(), *(parameter.grad.clone() for parameter in model.parameters())])
    for eager, traced in zip(*results, strict=True):
        assert torch.allclose(traced, eager, rtol=1e-4, atol=0.05 if autocast else 1e-5)


def test_exports_with_any_batch_size() -> None:
    model, x = small_network().eval(), torch.randn(2, 3, 4, 4)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    larger = torch.randn(7, 3, 4, 4)
    assert torch.allclose(program.module()(larger), model(larger), atol=1e-5)


@pytest.mark.slow
def test_inductor_agrees() -> None:
    model, x = small_network(), torch.randn(2, 3, 4, 4)
    assert torch.allclose(torch.compile(model, fullgraph=True)(x), model(x), atol=1e-4)
