"""A layer that is called by keyword, as the stock one can be."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import pcn


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 12, 3), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(input=torch.relu(self.conv(input=x)).mean((2, 3)))


def test_a_model_that_names_its_layers_input_can_be_switched() -> None:
    model, x = ByKeyword(), torch.randn(40, 3, 6, 6)
    expected = model(x)
    plan = pcn.compress_(model, [x], pcn.PCNConfig(rank=1.0, skip_larger=False))
    assert len(plan.transformed) == 2
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    budget = pcn.Budget(0.5, step=1, worth=pcn.Taylor(), config=pcn.PCNConfig(skip_larger=False))
    assert pcn.compress_(ByKeyword(), [x], budget).transformed
