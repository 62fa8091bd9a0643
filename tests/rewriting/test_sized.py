"""Coordinates that are sized for Adam: a step moves a layer as far as before, and nothing else changes."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer

import pcn
from small import ConvNet, Mlp

KINDS = {
    "dense": (Mlp, (12,), "fc2"),
    "grouped": (ConvNet, (3, 8, 8), "conv3"),
    "normed": (ConvNet, (3, 8, 8), "conv2"),
}


def built(kind: str) -> tuple[nn.Module, Tensor, str]:
    torch.manual_seed(0)
    make, shape, layer = KINDS[kind]
    return make().double().eval(), torch.randn(256, *shape, dtype=torch.double) * 2 + 0.3, layer


def rank_one(sized_for: str) -> float:
    """How far the first step of Adam moves outputs of a layer whose sixteen inputs go together, after the switch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 3)).double()
    x = torch.randn(64, 1, dtype=torch.double).expand(-1, 16).contiguous()
    if sized_for != "parent":
        pcn.compress_(model, [x - x.mean()], pcn.PCNConfig(rank=1, sized_for=sized_for))
    before = model(x).detach()
    optimizer = Adam([model[0].weight], lr=1e-3)
    (model(x) * x[:, :1]).sum().backward()
    optimizer.step()
    return float((model(x) - before).detach().abs().mean())


def test_a_step_of_adam_moves_a_layer_as_far_as_before() -> None:
    parent = rank_one("parent")
    assert rank_one("adam") == pytest.approx(parent, rel=0.05)
    assert rank_one("sgd") == pytest.approx(parent / 4, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{}, {"precondition": 1.0}, {"basis": "random"}, {"basis": "response", "precondition": 0.5}]
)
def test_what_a_layer_reads_has_deviations_that_sum_up_as_its_inputs_do(kind: str, options: dict[str, Any]) -> None:
    model, x, name = built(kind)
    stats = pcn.analyze(model, [x])
    config = pcn.PCNConfig(rank=0.5, skip_larger=False, sized_for="adam", **options)
    pcn.make_plan(model, stats, config).apply_(model, stats)
    layer = model.get_submodule(name)
    basis = layer.basis.detach().unflatten(0, (layer.groups, -1))
    found = torch.einsum("gmr,gml,glr->gr", basis, stats.covariance(name), basis).clamp_min(0).sqrt()
    expected = stats.covariance(name).diagonal(dim1=-2, dim2=-1).sqrt()
    torch.testing.assert_close(found.sum(1), expected.sum(1), rtol=1e-6, atol=0)


def test_so_do_patterns_of_taps() -> None:
    """Measured on what each weight reads: patches along directions and patterns, beside those of every tap."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).double()
    x = torch.randn(64, 3, 9, 9, dtype=torch.double).cumsum(-1)
    inputs = model[:2](x).detach()
    config = pcn.PCNConfig(layers={"2": pcn.LayerRule(rank=4, kernel_rank=2)}, rank=None, sized_for="adam")
    pcn.compress_(model, [x], config)
    layer = model[2]
    along = torch.einsum("nmhw,mr->nrhw", inputs, layer.basis)
    patches = nn.functional.unfold(along, 3).unflatten(1, (4, 9))  # (n, r, taps, positions)
    kernels = layer.tap_patterns.taps.flatten(1)  # (p, taps)
    owner = layer.tap_patterns.mask.nonzero()[:, 0]
    read = torch.einsum("npts,pt->nps", patches[:, owner], kernels)
    found = read.transpose(0, 1).flatten(1).std(1).sum()
    before = inputs.transpose(0, 1).flatten(1).std(1).sum() * 9
    assert float(found) == pytest.approx(float(before), rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"keep_outputs": 0.5}, {"kernel_rank": 2}, {"output_rank": 0.5}])
@pytest.mark.parametrize("order", ["truncate_first", "project_first", "kept_block"])
def test_the_function_is_the_same_and_so_it_is_folded_and_loaded(
    kind: str, options: dict[str, Any], order: Any, tmp_path: Path
) -> None:
    if order == "kept_block" and "kernel_rank" in options and kind != "dense":
        return  # bases of its own, which do not go with patterns
    model, x, _ = built(kind)
    stats = pcn.analyze(model, [x])
    plain, sized = copy.deepcopy(model), copy.deepcopy(model)
    for each, sized_for in ((plain, "sgd"), (sized, "adam")):
        config = pcn.PCNConfig(rank=0.5, skip_larger=False, order=order, sized_for=sized_for, **options)
        pcn.make_plan(model, stats, config).apply_(each, stats)
    expected = plain(x)
    torch.testing.assert_close(sized(x), expected, rtol=1e-8, atol=1e-8)
    first = sized.fc1.weight
    assert not torch.allclose(first, plain.fc1.weight, rtol=1e-2)
    pcn.save(sized, tmp_path / "saved")
    loaded = pcn.load(KINDS[kind][0]().double().eval(), tmp_path / "saved")
    torch.testing.assert_close(loaded(x), expected, rtol=1e-8, atol=1e-8)
    pcn.fold_(sized)
    torch.testing.assert_close(sized(x), expected, rtol=1e-8, atol=1e-8)


def optimizer_of(name: str, model: nn.Module) -> Optimizer | list[Optimizer] | None:
    weights = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    match name:
        case "adam":
            return Adam(model.parameters())
        case "two adams":
            return [AdamW(weights), Adam(others)]
        case "sgd":
            return SGD(model.parameters(), lr=0.1)
        case "muon":
            return [Muon(weights), AdamW(others)]
    return None


@pytest.mark.parametrize(
    ("optimizer", "asked", "expected"),
    [
        ("adam", None, "adam"),
        ("two adams", None, "adam"),
        ("adam", "sgd", "sgd"),
        ("sgd", None, "sgd"),
        ("sgd", "adam", "adam"),
        ("muon", None, "sgd"),  # its steps are as large as they are whatever a layer reads
        ("none", None, "sgd"),
    ],
)
def test_a_budget_sizes_coordinates_for_the_optimizer_that_trains(optimizer: str, asked: Any, expected: str) -> None:
    for switch in (False, True):
        model = Mlp(64)
        trains = optimizer_of(optimizer, model)
        budget = pcn.Budget(params=0.5, config=pcn.PCNConfig(sized_for=asked))
        batches = [torch.randn(128, 12)]
        if switch:
            plan = pcn.Switch(model, trains, budget, at=1).after_epoch(1, batches)
        else:
            plan = pcn.compress_(model, batches, budget, optimizer=trains)
        assert plan is not None
        assert {layer.sized_for for layer in plan.transformed} == {expected}
        assert pcn.Plan.from_json(plan.to_json()) == plan


def test_a_rule_sizes_one_layer_for_another_optimizer_and_leaves_its_sizes_to_the_budget() -> None:
    model, batches = Mlp(64), [torch.randn(128, 12)]
    stats, budget = pcn.analyze(model, batches), pcn.Budget(params=0.5, optimizer="adam")
    plain = pcn.make_plan(model, stats, budget)
    config = pcn.PCNConfig(layers={"*2": pcn.LayerRule(sized_for="sgd")})
    plan = pcn.make_plan(model, stats, replace(budget, config=config))
    assert plan.layers["fc2"].rank is not None
    assert plan.layers["fc2"].sized_for == "sgd"
    assert {**plan.layers, "fc2": replace(plan.layers["fc2"], sized_for="adam")} == plain.layers


def test_a_rule_sizes_one_layer_where_ranks_are_given() -> None:
    model, batches = Mlp(64), [torch.randn(128, 12)]
    config = pcn.PCNConfig(rank=8, layers={"fc2": pcn.LayerRule(sized_for="adam")})
    plan = pcn.compress_(model, batches, config)
    assert {layer.name for layer in plan.transformed if layer.sized_for == "adam"} == {"fc2"}


def test_ranks_that_are_given_leave_the_papers_coordinates_as_they_are() -> None:
    model = Mlp(64)
    plan = pcn.compress_(model, [torch.randn(128, 12)], pcn.PCNConfig(rank=8), optimizer=Adam(model.parameters()))
    assert {layer.sized_for for layer in plan.transformed} == {"sgd"}
    basis = model.fc2.basis
    torch.testing.assert_close(basis.T @ basis, torch.eye(8), rtol=0, atol=1e-5)


def test_an_input_that_never_varies_stays_as_large_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(12, 8))
    pcn.compress_(model, [torch.ones(64, 12)], pcn.PCNConfig(rank=4, sized_for="adam"))
    assert torch.isfinite(model(torch.randn(4, 12))).all()


def test_another_optimizer_is_refused_by_name() -> None:
    with pytest.raises(pcn.ConfigError, match=r"sized_for='lion': choose one of sgd, adam"):
        pcn.PCNConfig(sized_for="lion")  # type: ignore[arg-type]
    with pytest.raises(pcn.ConfigError, match=r"sized_for='lion': choose one of sgd, adam"):
        pcn.LayerRule(sized_for="lion")  # type: ignore[arg-type]
