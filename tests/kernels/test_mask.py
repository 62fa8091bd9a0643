"""In place of y a byte for each of its numbers can be kept for backward: gradients are the same, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pcn.kernels import batch_moments, norm_project

SHAPE = 30, 20


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Rows, what is added to them, and a batch norm; a NaN among the rows of one column."""
    rows, added = torch.randn(SHAPE).to(dtype), torch.randn(SHAPE).to(dtype)
    mean, variance = batch_moments(rows)
    rows[3, 4] = torch.nan
    weight, bias = torch.rand(SHAPE[1]) + 0.5, torch.randn(SHAPE[1])
    leaves = [tensor.requires_grad_() for tensor in (rows, added, weight, bias)]
    return *leaves, mean, (variance + 1e-5).rsqrt()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_the_same(gradients: Callable[..., Any], dtype: torch.dtype) -> None:
    given, coming = example(dtype), (torch.randn(SHAPE).to(dtype), None)
    found, expected = (
        gradients("norm_project", (*given, None, None, True, True, True, mask), coming) for mask in (True, False)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.isnan(found[1]).sum() == 0  # what was added to a NaN has the gradient that came
    assert found[1][3, 4] == coming[0][3, 4]


def test_bytes_are_kept() -> None:
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    rows, *given = example()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        norm_project(rows, *given, None, None, True, True, True, True)
    full = [tensor for tensor in kept if tensor.shape == SHAPE]
    assert [tensor.dtype for tensor in full] == [torch.float32, torch.uint8]
    assert full[0].data_ptr() == rows.data_ptr()


def test_the_operator_is_registered_as_it_behaves() -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = *example(), None, None, True, True, True, True
    torch.library.opcheck(torch.ops.pcn.norm_project, given, test_utils=checks)
