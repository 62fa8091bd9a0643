"""Ranks that are handed out evenly: about the same share of its directions for every layer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(1, 12), st.sampled_from([None, 1, 3]), st.sampled_from([1, 2]))
def test_directions_far_beyond_those_that_a_layer_can_tell_apart_are_worth_nothing(
    inputs: int, outputs: int, kernel: int | None, groups: int
) -> None:
    width, useful = inputs, min(inputs, 2 * outputs * (kernel or 1) ** 2)
    if kernel is None:
        layer, shape = nn.Linear(width, outputs), (width,)
    else:
        layer, shape = nn.Conv2d(groups * width, groups * outputs, kernel, groups=groups), (groups * width, 4, 4)
    model, x = nn.Sequential(layer), torch.randn(60, *shape)  # enough to show all directions
    worth = pcn.Evenly()(model, pcn.analyze(model, [x]), ["0"], ())["0"]
    assert (worth.diff()[:useful] > 0).all()
    assert (worth[useful:] == worth[-1]).all()
    assert worth[-1] == pytest.approx(useful / width * layer.weight.numel() * math.log(1001))


def test_a_dense_layer_of_many_inputs_leaves_some_to_the_others() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 32), nn.ReLU(), nn.Linear(32, 32))
    stats = pcn.analyze(model, [torch.randn(256, 64)])
    for worth in (pcn.Evenly(), pcn.Hedged()):
        plan = pcn.make_plan(model, stats, pcn.Budget(params=0.25, step=1, worth=worth))
        assert plan.layers["0"].rank >= 12
        assert plan.layers["2"].rank <= 64


@pytest.mark.parametrize("worth", [pcn.Evenly(), pcn.Hedged()])
@given(samples=st.integers(4, 40))
@settings(max_examples=10, deadline=None)
def test_no_more_directions_are_bought_than_samples_have_shown(worth: pcn.Evenly, samples: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    stats = pcn.analyze(model, [torch.randn(samples, 256)])
    plan = pcn.make_plan(model, stats, pcn.Budget(params=0.6, step=1, worth=worth))
    ranks = [layer.rank for layer in plan.layers.values() if layer.rank is not None]
    assert ranks
    assert all(rank <= samples - 1 for rank in ranks)
