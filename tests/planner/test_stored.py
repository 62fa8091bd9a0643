"""Budgets of all that is stored: bases count like weights, and dropped channels take their statistics along."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.costs.count import count


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 36, 40),
        nn.ReLU(),
        nn.Linear(40, 10),
    )


def images() -> Tensor:
    return torch.randn(48, 3, 6, 6, generator=torch.Generator().manual_seed(0))


NOW = count(network())
STATS = pcn.analyze(network(), [images()])


def compressed(**budget: Any) -> nn.Module:
    model = network()
    pcn.compress_(model, [images()], pcn.Budget(**budget))
    return model


@settings(max_examples=12, deadline=None)
@given(st.floats(0.15, 1.0), st.sampled_from([{}, {"patterns": True}, {"two_sided": True}, {"drop_channels": True}]))
def test_no_more_is_stored(share: float, options: dict[str, bool]) -> None:
    model = compressed(stored=share, step=2, **options)
    assert count(model).total <= share * NOW.total
    plan = pcn.get_plan(model)
    assert plan is not None
    assert plan.unspent is None or "stored" in plan.unspent


def test_a_budget_of_what_is_trained_stores_more_than_one_of_both() -> None:
    trained = count(compressed(params=0.2, step=2))
    both = count(compressed(params=0.2, stored=0.3, step=2))
    assert trained.total > 0.35 * NOW.total  # the bases of the wide dense layer
    assert both.total <= 0.3 * NOW.total
    assert both.trainable <= 0.2 * NOW.trainable


def test_running_statistics_go_with_their_channels() -> None:
    model = network()
    with torch.no_grad():  # channels that nobody needs
        model[3].weight[8:] = 0
        model[3].bias[8:] = 0
    pcn.compress_(model, [images()], pcn.Budget(stored=0.25, step=4, drop_channels=True))
    plan = pcn.get_plan(model)
    assert plan is not None
    assert plan.layers["3"].kept_outputs < 32
    assert 0.2 * NOW.total < count(model).total <= 0.25 * NOW.total


def test_one_that_cannot_be_met_says_the_least_that_could() -> None:
    with pytest.raises(pcn.ConfigError, match=r"the budget of 100 stored numbers is [\d,]+ stored numbers too small"):
        pcn.make_plan(network(), STATS, pcn.Budget(stored=100, step=1))


def test_frozen_weights_are_stored_too() -> None:
    model = network()
    model[7].weight.requires_grad_(False)
    with pytest.raises(pcn.ConfigError, match="too small"):
        pcn.compress_(model, [images()], pcn.Budget(stored=0.5))
