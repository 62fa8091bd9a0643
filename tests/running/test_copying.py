"""A copy of a model is one of its own, also where a training step has left tensors with a history in it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from pcn.errors import PlanError
from pcn.running.copying import copied, copied_around


def test_what_autograd_has_computed_comes_without_its_history() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.held = {"losses": [model(torch.randn(4, 3)).sum()]}
    model.again = model.held["losses"][0]
    double = copied(model)
    (loss,) = double.held["losses"]
    assert loss is double.again
    assert loss.grad_fn is None
    assert torch.equal(loss, model.again)
    assert loss.data_ptr() != model.again.data_ptr()
    assert double[0].weight is not model[0].weight
    assert torch.equal(double[0].weight, model[0].weight)


def test_a_copy_around_its_tensors_shares_them_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.seen = []
    double = copied_around(model)
    assert [id(p) for p in double.parameters()] == [id(p) for p in model.parameters()]
    assert double[1].running_mean is model[1].running_mean
    assert double[0] is not model[0]
    assert double.seen is not model.seen


def test_why_there_is_no_copy_is_said() -> None:
    model = nn.Linear(3, 3)
    model.lock = threading.Lock()
    with pytest.raises(PlanError, match="cannot be copied: TypeError: cannot pickle"):
        copied(model)
