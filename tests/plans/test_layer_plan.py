"""What a plan says a layer trains is what it trains, whatever part of it is frozen."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import pcn
from pcn.statistics.statistics import LayerShape

FROZEN = list(itertools.product([False, True], repeat=2))  # weight, bias
CONFIGS = {
    "ranks": pcn.PCNConfig(rank=0.25, skip_larger=False),
    "dropped channels": pcn.PCNConfig(rank=0.25, keep_outputs=0.5, skip_larger=False),
    "dropped channels alone": pcn.PCNConfig(rank=1.0, keep_outputs=0.5),
    "trained outputs": pcn.PCNConfig(rank=0.5, output_rank=0.5, skip_larger=False),
    "trained basis": pcn.PCNConfig(rank=0.25, train_basis=True, skip_larger=False),
    "nothing": pcn.PCNConfig(rank=None),
}


def network(weight: bool, bias: bool, *, has_bias: bool = True) -> nn.Sequential:
    """Dense layers of which weights or biases are frozen."""
    torch.manual_seed(0)
    layers = (nn.Linear(12, 32, has_bias), nn.Tanh(), nn.Linear(32, 24, has_bias), nn.Tanh(), nn.Linear(24, 5))
    model = nn.Sequential(*layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (weight if name.endswith("weight") else bias))
    return model


def trained(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("weight", "bias"), FROZEN)
def test_what_it_trains_is_what_the_plan_says(weight: bool, bias: bool, has_bias: bool, config: pcn.PCNConfig) -> None:
    model, batch = network(weight, bias, has_bias=has_bias), torch.randn(200, 12)
    stats = pcn.analyze(model, [batch])
    before = {name: trained(model.get_submodule(name)) for name in stats.layers}
    assert {name: LayerShape.of(model.get_submodule(name)).trainable for name in stats.layers} == before
    plan = pcn.make_plan(model, stats, config)
    assert {name: layer.trainable_before for name, layer in plan.layers.items()} == before
    plan.apply_(model, stats)
    after = {name: trained(model.get_submodule(name)) for name in plan.layers}
    assert {name: layer.trainable_after for name, layer in plan.layers.items()} == after
    assert plan.trainable_after == trained(model)
    assert pcn.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("weight", "bias"), FROZEN)
def test_the_statistics_know_what_a_rank_would_train(weight: bool, bias: bool, centred: bool) -> None:
    model = network(weight, bias, has_bias=False)
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=4, skip_larger=False, centred=centred))
    shapes = {name: LayerShape.of(model.get_submodule(name)) for name in plan.layers}
    assert {name: shape.trainable_with(4, centred=centred) for name, shape in shapes.items()} == {
        name: layer.trainable_after for name, layer in plan.layers.items()
    }


def test_a_plan_speaks_of_biases_only_where_they_are_not_as_the_weights() -> None:
    for weight, bias in FROZEN:
        text = pcn.make_plan(network(weight, bias), None, pcn.PCNConfig(rank=4)).to_json()
        assert ("bias_frozen" in text) == (weight != bias)


def test_a_layer_of_which_only_biases_train_is_not_called_frozen() -> None:
    config = pcn.PCNConfig(rank=4, skip_larger=False)
    assert "24 -> 24" in str(pcn.make_plan(network(True, False), None, config))
    assert "  frozen  " in str(pcn.make_plan(network(True, True), None, config))


@pytest.mark.parametrize("share", [0.08, 0.12, 0.3])
def test_a_budget_is_kept_where_biases_are_frozen(share: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight[40:] *= 0.01
            layer.bias[40:] *= 0.01
    for layer in (model[0], model[2], model[4]):
        layer.bias.requires_grad_(False)
    limit = int(share * trained(model))
    plan = pcn.compress_(model, [torch.randn(512, 20)], pcn.Budget(params=share, drop_channels=True, step=1))
    assert plan.trainable_after == trained(model) <= limit
