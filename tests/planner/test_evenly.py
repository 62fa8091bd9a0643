"""Ranks that are handed out evenly: about the same share of its directions for every layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pcn
from pcn.training import Settings
from pcn.training.requests import requested


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


@pytest.mark.parametrize("kernel_rank", [None, 4])
@pytest.mark.parametrize("share", [0.2, 0.4])
def test_layers_of_all_sizes_keep_the_same_share(share: float, kernel_rank: int | None) -> None:
    model, x = network(), torch.randn(32, 3, 12, 12)
    stats = pcn.analyze(model, [x])
    config = pcn.PCNConfig(exclude=("0", "7"), kernel_rank=kernel_rank)
    budget = pcn.Budget(params=share, step=1, worth=pcn.Evenly(), patterns=False, config=config)
    plan = pcn.make_plan(model, stats, budget)
    shares = [layer.rank / layer.in_features for layer in plan.layers.values() if layer.rank is not None]
    assert len(shares) == 2
    assert max(shares) - min(shares) <= 2 / 16
    trained = network()
    plan.apply_(trained, pcn.analyze(trained, [x]))
    limit = share * sum(p.numel() for p in model.parameters())
    assert 0.95 * limit < sum(p.numel() for p in trained.parameters()) <= limit


def test_the_settings_name_it() -> None:
    wish = requested(Settings(params=0.25, worth="evenly", switch_at="1"))
    assert isinstance(wish, pcn.Budget)
    assert wish.worth == pcn.Evenly()
