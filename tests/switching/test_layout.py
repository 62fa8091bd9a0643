"""A model with its channels last in memory stays so: weights, gradients and what the optimizer holds of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pcn
from pcn.nn import PCConv2d


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 5),
    )  # fmt: skip


def train(layout: torch.memory_format, optimizer_class: type[torch.optim.Optimizer], **options: object) -> nn.Module:
    model = network().double().to(memory_format=layout)
    optimizer = optimizer_class(model.parameters(), lr=0.01, **options)
    generator = torch.Generator().manual_seed(1)
    config = pcn.PCNConfig(rank=4, layers={"0": pcn.LayerRule(keep_outputs=12)}, skip_larger=False, exclude=["7"])
    for step in range(6):
        images = torch.randn(32, 3, 8, 8, generator=generator, dtype=torch.float64).to(memory_format=layout)
        labels = torch.randint(5, (32,), generator=generator)
        if step == 3:
            pcn.Switch(model, optimizer, config).now([images])
            for parameter in model.parameters():
                for value in (parameter.grad, *optimizer.state.get(parameter, {}).values()):
                    assert not isinstance(value, torch.Tensor) or not value.ndim or value.stride() == parameter.stride()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
        (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
        (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
    ],
)
def test_channels_last_stays_and_trains_alike(
    optimizer_class: type[torch.optim.Optimizer], options: dict[str, object]
) -> None:
    found = train(torch.channels_last, optimizer_class, **options)
    expected = train(torch.contiguous_format, optimizer_class, **options)
    assert isinstance(found[3], PCConv2d)
    for layer in (found[0], found[3], found[5]):
        assert layer.weight.is_contiguous(memory_format=torch.channels_last)
        assert not layer.weight.is_contiguous()
    for mine, theirs in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-8)
