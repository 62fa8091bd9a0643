"""How batches reach a model."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pcn.errors import ConfigError
from pcn.running.example import Example, device_of

X, Y, TARGET = torch.ones(2, 3), torch.full((2, 3), 2.0), torch.zeros(2)
Pair = namedtuple("Pair", ["inputs", "targets"])


class Sum(nn.Module):
    """Says how it was called."""

    def forward(self, x: Tensor, y: Tensor | None = None, *, z: Tensor | None = None) -> tuple[float, float, float]:
        return tuple(0.0 if t is None else float(t[0, 0]) for t in (x, y, z))


@pytest.mark.parametrize(
    ("batch", "seen"),
    [
        (X, (1, 0, 0)),
        ((X, TARGET), (1, 0, 0)),
        ([X, TARGET], (1, 0, 0)),
        ([X], (1, 0, 0)),
        (Pair(X, TARGET), (1, 0, 0)),
        ({"x": X, "z": Y}, (1, 0, 2)),
        (UserDict(x=X, y=Y), (1, 2, 0)),
        (({"x": X, "y": Y}, TARGET), (1, 2, 0)),
        (((X, Y), TARGET), (1, 2, 0)),
        ([[X, Y], TARGET], (1, 2, 0)),
    ],
)
def test_the_ways_in(batch: Any, seen: tuple[int, int, int]) -> None:
    assert Example.of(batch).call(Sum()) == seen


class OfOne(nn.Module):
    def forward(self, x: Tensor) -> float:
        return float(x[0, 0])


class OfAny(nn.Module):
    def forward(self, *args: Tensor) -> int:
        return len(args)


@pytest.mark.parametrize("model", [Sum(), nn.DataParallel(Sum())])
@pytest.mark.parametrize("batch", [(X, Y, TARGET), [X, Y, TARGET, TARGET]])
def test_of_three_or_more_it_is_said_which_goes_in(model: nn.Module, batch: Any) -> None:
    with pytest.warns(UserWarning, match=r"only the first goes in, .* forward=lambda model, batch: model\(batch"):
        Example.for_model(model, batch)
    Example.for_model(model, batch, forward=lambda model, batch: model(batch[0], batch[1]))


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (OfOne(), (X, TARGET, TARGET)),  # an index beside the targets
        (nn.Flatten(), (X, TARGET, TARGET)),  # whose other arguments are numbers
        (OfAny(), (X, TARGET, TARGET)),
        (Sum(), (X, TARGET)),
        (Sum(), ((X, Y), TARGET, TARGET)),  # says itself what goes in
        (Sum(), ({"x": X}, TARGET, TARGET)),
    ],
)
def test_what_can_only_go_in_one_way_goes_in(model: nn.Module, batch: Any) -> None:
    assert str(Example.for_model(model, batch)) == str(Example.of(batch))


def test_a_forward_function_gets_the_batch_as_it_is() -> None:
    batch = {"anything": [X, "text"]}
    example = Example.of(batch, forward=lambda model, b: model(b["anything"][0], z=Y))
    assert example.call(Sum()) == (1, 0, 2)
    assert example.with_inputs({"anything": [Y]}).call(Sum()) == (2, 0, 2)


@pytest.mark.parametrize("batch", ["text", ["text"], 3, None, [None, X]])
def test_what_is_no_batch_is_refused_with_the_way_out(batch: Any) -> None:
    with pytest.raises(ConfigError, match=r"give tensors, mappings, .* or forward=lambda model, batch"):
        Example.of(batch)


@pytest.mark.parametrize("batch", [[], ()])
def test_an_empty_batch_is_refused(batch: Any) -> None:
    with pytest.raises(ConfigError, match="a batch is empty"):
        Example.of(batch)


def test_tensors_go_to_the_device_wherever_they_stand() -> None:
    example = Example.of({"a": [X, (Y, "text")]}, forward=lambda model, b: None, device=torch.device("meta"))
    first, (second, text) = example.inputs["a"]
    assert first.is_meta
    assert second.is_meta
    assert text == "text"


def test_the_device_of_a_model() -> None:
    assert device_of(nn.Linear(2, 2, device="meta")) == torch.device("meta")
    assert device_of(nn.BatchNorm1d(2, affine=False)) == torch.device("cpu")
    assert device_of(nn.ReLU()) is None
