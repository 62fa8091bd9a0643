"""The other methods do what their papers say: exact at full rank, the right decay, the sizes that are compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pcn import models
from pcn.costs.count import count
from pcn.errors import ConfigError

SIZES = [("wide_resnet20", 1_094_154), ("wide_resnet20", 473_802), ("conv4", 101_810)]
LAYERS = [
    nn.Conv2d(6, 4, 3, stride=2, padding=1),
    nn.Conv2d(3, 8, 3, padding=2, dilation=2, bias=False),
    nn.Linear(5, 7),
]


def example(layer: nn.Module) -> torch.Tensor:
    return torch.randn(2, 5) if isinstance(layer, nn.Linear) else torch.randn(2, layer.in_channels, 9, 9)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_factors_of_full_rank_change_nothing(layer: nn.Module) -> None:
    from peers.factors import Factorised
    from peers.svd import full_rank

    x = example(layer)
    factorised = Factorised(layer, full_rank(layer))
    assert torch.allclose(factorised(x), layer(x), atol=1e-5)
    left, right = factorised.expand.weight.flatten(1), factorised.reduce.weight.flatten(1)
    assert torch.allclose(left.T @ left, right @ right.T, atol=1e-5)  # both have the same share of the singular values


def test_factors_of_lower_rank_are_the_nearest_product() -> None:
    from peers.factors import Factorised, singular_values

    layer = nn.Conv2d(6, 8, 3)
    factorised = Factorised(layer, 3)
    product = factorised.expand.weight.flatten(1) @ factorised.reduce.weight.flatten(1)
    lost = (layer.weight.flatten(1) - product).detach().square().sum()
    assert float(lost) == pytest.approx(float(singular_values(layer)[3:].square().sum()), rel=1e-4)


def test_frobenius_decay_is_the_gradient_of_the_products_norm() -> None:
    from peers.factors import Factorised, add_frobenius_decay_, factor_pairs

    model = nn.Sequential(Factorised(nn.Conv2d(6, 4, 3), 2), nn.Flatten(), Factorised(nn.Linear(5, 7), 3)).double()
    pairs = factor_pairs(model)
    penalty = sum((left.flatten(1) @ right.flatten(1)).square().sum() for left, right in pairs)
    parameters = [parameter for pair in pairs for parameter in pair]
    expected = torch.autograd.grad(0.3 / 2 * penalty, parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    add_frobenius_decay_(pairs, 0.3)
    for parameter, wanted in zip(parameters, expected, strict=True):
        assert torch.allclose(parameter.grad, 1 + wanted)


def test_an_optimizer_decays_products_in_place_of_factors_and_the_rest_as_before() -> None:
    from peers.factors import Factorised, use_frobenius_decay_

    model = nn.Sequential(Factorised(nn.Linear(5, 7, bias=False), 3), nn.Linear(7, 2, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    left, right = model[0].expand.weight.detach().clone(), model[0].reduce.weight.detach().clone()
    plain = model[1].weight.detach().clone()
    use_frobenius_decay_(optimizer, model, 0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(model[0].expand.weight, left - 0.1 * 0.5 * left @ right @ right.T)
    assert torch.allclose(model[0].reduce.weight, right - 0.1 * 0.5 * left.T @ left @ right)
    assert torch.allclose(model[1].weight, plain * (1 - 0.1 * 0.5))


def test_the_stable_rank_counts_equal_singular_values() -> None:
    from peers.svd import stable_rank

    layer = nn.Linear(6, 6)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([2.0, 2, 2, 0, 0, 0])))
    assert stable_rank(layer) == pytest.approx(3)


@pytest.mark.parametrize(("network", "target"), SIZES)
def test_low_rank_meets_the_sizes_of_the_comparison(network: str, target: int) -> None:
    from peers.factors import inner_layers
    from peers.svd import full_rank, ranks_for, saved

    model = models.build(network)
    layers = dict(inner_layers(model))
    quarter = {name: 0.25 * full_rank(layer) for name, layer in layers.items()}
    uneven = {name: rank * float(torch.rand(()) + 0.1) for name, rank in quarter.items()}
    for wishes in (quarter, uneven):
        ranks = ranks_for(model, layers, wishes, target)
        trainable = count(model).trainable - sum(saved(layers[name], rank) for name, rank in ranks.items())
        assert 0.98 * target <= trainable <= target
    assert {"conv1", "output" if network == "conv4" else "fc"}.isdisjoint(layers)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_what_factors_save_is_counted_right(layer: nn.Module) -> None:
    from peers.factors import factorise_
    from peers.svd import saved

    model = nn.Sequential(layer)
    before = count(model).trainable
    factorise_(model, {"0": 2})
    assert before - count(model).trainable == saved(layer, 2)
    model[0](example(layer)).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize(("network", "target"), SIZES)
def test_pruning_meets_the_sizes_of_the_comparison(network: str, target: int) -> None:
    pytest.importorskip("torch_pruning")
    from peers.pruning import prune_, pruning_for, resize_

    model, x = models.build(network), models.example(network)
    share, round_to = pruning_for(model, x, target)
    prune_(model, x, share, round_to)
    widths = {module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)}
    assert round_to == (None if network == "conv4" else 8)
    assert network == "conv4" or not any(width % 8 for width in widths)
    assert count(model).trainable == pytest.approx(target, rel=0.02)
    assert model.training
    again = models.build(network)
    resize_(again, {name: list(tensor.shape) for name, tensor in model.state_dict().items()})
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(x), model.eval()(x))


def test_parameters_of_a_pruned_network_are_new() -> None:
    """What the pruner's own backward pass has left behind on another stream would break a CUDA graph of a step."""
    from peers.pruning import renew_

    model = nn.Sequential(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.BatchNorm2d(4))
    model[1].bias.requires_grad_(False)
    before = dict(model.named_parameters())
    renew_(model)
    for name, after in model.named_parameters():
        assert after is not before[name]
        assert torch.equal(after, before[name])
        assert (after.stride(), after.requires_grad) == (before[name].stride(), before[name].requires_grad)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from peers.pruning import prune_

    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(ConfigError, match="pip install torch-pruning"):
        prune_(models.build("conv4"), models.example("conv4"), 0.5, None)


def kept(plan: Any, folder: Path) -> tuple[str, str]:
    """Where a plan lies that is kept for a run, and its name there."""
    from peers.order import Run
    from peers.plans import Plans, plan_name

    run, plans = Run("pcn-planner", "wide_resnet20", 1_094_154, 60, 10), Plans(folder / "plans.json")
    plans.add(run, plan.to_json())
    return str(plans.path), plan_name(run)


def test_random_bases_are_orthonormal_and_weights_drawn_as_the_parents(tmp_path: Path) -> None:
    import pcn
    from peers.networks import planned

    model = models.build("wide_resnet20")
    plan = pcn.make_plan(model, None, models.config("wide_resnet20-pcn2"), example=models.example("wide_resnet20"))
    made: Any = planned("wide_resnet20", {}, *kept(plan, tmp_path))
    assert count(made) == pcn.costs.count.Cost(473_802, 541_834)
    layer = made.stage2[1].conv1
    assert torch.allclose(layer.basis.T @ layer.basis, torch.eye(layer.rank), atol=1e-5)
    assert float(layer.weight.detach().var()) == pytest.approx(2 / (9 * layer.weight.shape[0]), rel=0.1)
    assert not layer.bias.any()


def test_weights_along_patterns_of_taps_are_drawn_as_large_as_the_parents(tmp_path: Path) -> None:
    import pcn
    from peers.networks import planned

    model = models.build("wide_resnet20")
    stats = pcn.analyze(model, [torch.randn(4, 3, 32, 32)])
    config = pcn.PCNConfig(rank=0.5, kernel_rank=4, exclude=("conv1", "fc"))
    made: Any = planned("wide_resnet20", {}, *kept(pcn.make_plan(model, stats, config), tmp_path))
    layer = made.stage2[1].conv1
    assert layer.weight.shape == (128, 64 * 4)
    assert float(layer.weight.detach().var()) == pytest.approx(2 / (9 * 128), rel=0.1)
