"""What would be refused at the switch is refused when it is made, as far as it is known then."""

from __future__ import annotations

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
