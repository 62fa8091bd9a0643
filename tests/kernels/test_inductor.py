"""Compiling does not take longer the deeper in a network an operator is met first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pcn.kernels import inductor


def test_the_compiler_knows_every_operator_before_it_meets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import exc, lowering

    def written_out(*arguments: object) -> str:
        raise AssertionError("the graph before an operator is written out")

    def deep(x: Tensor) -> Tensor:
        for _ in range(20):  # of which each would double what is written
            x = x + x @ weight
        return torch.ops.pcn.batch_moments(x)[1]

    for name in inductor._names():  # as in a process that has compiled nothing yet
        lowering.lowerings.pop(getattr(torch.ops.pcn, name).default, None)
    monkeypatch.setattr(inductor, "FIXED", (99, 0))
    monkeypatch.setattr(exc.OperatorIssue, "operator_str", staticmethod(written_out))
    torch.compiler.reset()
    x, weight = torch.randn(6, 4), torch.randn(4, 4) / 4
    with torch._inductor.config.patch(fx_graph_cache=False):
        torch.testing.assert_close(torch.compile(deep, fullgraph=True)(x), deep(x))
    assert len(inductor._names()) > 5
    assert all(getattr(torch.ops.pcn, name).default in lowering.lowerings for name in inductor._names())
