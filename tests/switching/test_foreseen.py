"""What would be refused at the switch is refused when it is made, as far as it is known then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pcn
from switching.loop import dense


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": {"2": pcn.LayerRule(rank=500)}}, "'2' is asked for rank 500, but its input has 24 dimensions"),
        ({"layers": {"2": pcn.LayerRule(keep_outputs=500)}}, "'2' is asked to keep 500 outputs, but it has only 24"),
        ({"order": "kept_block", "precondition": 1.0}, "order 'kept_block' makes PCA bases of its own"),
        ({"order": "kept_block", "basis": "random"}, "order 'kept_block' makes PCA bases of its own"),
    ],
)
def test_a_configuration_that_fits_no_such_model(options: dict[str, Any], said: str) -> None:
    with pytest.raises(pcn.ConfigError, match=said):
        pcn.Switch(dense(), None, pcn.PCNConfig(**options))


def test_an_optimizer_of_another_model() -> None:
    other = torch.optim.SGD(dense().parameters(), lr=0.1)
    with pytest.raises(pcn.PlanError, match=r"holds none of the parameters .* 6 of those that it holds are not in"):
        pcn.Switch(dense(), other)


class Unused(nn.Module):
    """A narrow layer that nobody calls, beside others."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused = dense(), nn.Linear(4, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def test_what_only_the_switch_can_tell_is_left_to_it() -> None:
    rules = {"*": pcn.LayerRule(rank=8), "body.2": pcn.LayerRule(rank=pcn.ExplainedVariance(0.9))}
    plan = pcn.Switch(Unused(), None, pcn.PCNConfig(layers=rules)).now([torch.randn(64, 10)])
    assert plan.layers["unused"].rank is None
    frozen = dense()
    optimizer = torch.optim.SGD(frozen[4].parameters(), lr=0.1)
    frozen[4].requires_grad_(False)  # until later
    pcn.Switch(frozen, optimizer)
    lazy = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.Linear(32, 4))
    pcn.Switch(lazy, None, pcn.PCNConfig(layers={"0": pcn.LayerRule(rank=8)}))


class Held(nn.Module):
    """An average that is held by another name than torch's own wrapper has for it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.ema_model = copy.deepcopy(model)


@pytest.mark.parametrize(
    ("ema", "said"),
    [
        (Held, r"'0.weight' is missing in it and of shape \(24, 10\) in the model"),
        (lambda model: nn.Sequential(*model, nn.Linear(4, 5)), r"'5.weight' is of shape \(5, 4\) in it and missing"),
        (lambda model: nn.Sequential(nn.Linear(10, 20), *model[1:]), r"is of shape \(20, 10\) in it and of shape"),
    ],
)
def test_an_average_of_another_model(ema: Callable[[nn.Module], nn.Module], said: str) -> None:
    model = dense()
    with pytest.raises(pcn.PlanError, match=f"ema is no copy of the model: .*{said}"):
        pcn.Switch(model, None, params=0.5, ema=ema(model))


@pytest.mark.parametrize("ema", [copy.deepcopy, torch.optim.swa_utils.AveragedModel])
def test_an_average_of_this_model(ema: Callable[[nn.Module], nn.Module]) -> None:
    model = dense()
    assert pcn.Switch(model, None, params=0.9, ema=ema(model)).plan is None


@pytest.mark.parametrize("done", [-1, 2.5, True, None])
def test_a_number_of_epochs_that_is_none(done: Any) -> None:
    switch = pcn.Switch(dense(), None)
    with pytest.raises(pcn.ConfigError, match="give how many are done, a whole number that is not negative"):
        switch.after_epoch(done, [torch.randn(8, 10)])
