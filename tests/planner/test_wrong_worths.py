"""Worths that cannot be: said as errors that tell what to give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import pcn
from pcn.planner import Divergence, Taylor
from small import Mlp, vectors


class Own:
    """A worth of one's own."""

    needs_batches: ClassVar[bool] = False

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __call__(self, model: nn.Module, stats: Any, layers: Any, batches: Any) -> dict[str, Any]:
        return {name: self.make(stats.spectrum(name).width) for name in layers}


def plan(worth: Any) -> pcn.Plan:
    x = vectors(40)
    return pcn.compress_(Mlp(), [x], pcn.Budget(params=0.5, step=2, worth=worth))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda width: list(range(width + 1)), r"\[0, 1, 2.*: give what 0, 1, ..., \d+ directions are worth, as one"),
        (lambda width: torch.arange(3.0), r"a tensor of shape \(3,\): give"),
        (lambda width: None, "is None: give"),
        (lambda width: -torch.arange(width + 1.0), "does not rise from 0"),
    ],
)
def test_what_is_no_worth_is_refused(make: Callable[[int], Any], said: str) -> None:
    with pytest.raises(pcn.ConfigError, match=said):
        plan(Own(make))


class Silent(Own):
    def __call__(self, *arguments: Any) -> Any:
        """Forget to return anything."""


def test_a_worth_that_returns_nothing_is_refused() -> None:
    with pytest.raises(pcn.ConfigError, match="the worth is None: have it return a tensor for every layer"):
        plan(Silent(len))


@pytest.mark.parametrize("loss", [lambda model, batch: Mlp()(batch).square().mean(), lambda model, batch: 1.0])
def test_a_loss_of_another_model_is_refused(loss: Any) -> None:
    with pytest.raises(pcn.ConfigError, match="calls the model that it is given"):
        plan(Taylor(loss))


@pytest.mark.parametrize(
    ("compare", "said"),
    [
        (lambda before, after: after - before, r"shape \(40, 5\).*one number"),
        (lambda before, after: -(after - before).square().mean(), "negative.*a distance"),
        (lambda before, after: "far", "type str.*one number"),
    ],
)
def test_what_is_no_distance_is_refused(compare: Any, said: str) -> None:
    with pytest.raises(pcn.ConfigError, match=said):
        plan(Divergence(compare))


def test_a_distance_may_be_a_plain_number() -> None:
    def compare(before: torch.Tensor, after: torch.Tensor) -> float:
        return float((after - before).square().mean())

    assert plan(Divergence(compare)).changes_something


@pytest.mark.parametrize("make", [lambda: Taylor(3), lambda: Divergence("far"), lambda: Divergence(finest=0)])  # type: ignore[arg-type]
def test_wrong_arguments_are_refused_at_once(make: Callable[[], Any]) -> None:
    with pytest.raises(pcn.ConfigError, match="give"):
        make()
