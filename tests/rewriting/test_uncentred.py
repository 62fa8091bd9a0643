"""Inputs that are not centred: directions of E[x xᵀ], no bias that was not there, the architecture back exactly."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from new_coordinates import CLASSES, MODELS, batch, loss_of
from pcn.config import STEPPERS
from pcn.nn import PCConv2d, PCLinear, PCModule

WHOLE = {"rank": 1.0, "skip_larger": False, "centred": False}
HALF = {"rank": 0.5, "skip_larger": False, "centred": False}


def without_biases(kind: str) -> nn.Sequential:
    """A network none of whose layers has a bias."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d) or type(layer).__name__ == "Conv1D":
            layer.bias = None
    return model


def biased(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters() if name.endswith("bias")]


BARE = [kind for kind in MODELS if kind != "transposed"]  # transformers' own layer computes with its bias


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(BARE), st.sampled_from([0.0, 1.0]), st.sampled_from(STEPPERS), st.sampled_from([1.0, 0.5]))
def test_full_rank_changes_nothing_and_folding_leaves_no_trace(
    kind: str, precondition: float, sized_for: Any, rank: float
) -> None:
    model = without_biases(kind)
    (x, _), names = batch(kind, 1, 64), list(model.state_dict())
    before, had = model.eval()(x), biased(model)
    config = pcn.PCNConfig(rank=rank, skip_larger=False, centred=False, precondition=precondition, sized_for=sized_for)
    plan = pcn.compress_(model, [x], config)
    assert len(plan.transformed) == sum(isinstance(module, PCModule) for module in model.modules()) > 1
    assert biased(model) == had
    if rank == 1.0:
        torch.testing.assert_close(model(x), before, rtol=1e-8, atol=1e-8)
    small = model(x)
    assert pcn.fold_(model) == []
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), small, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", MODELS)
def test_at_full_rank_sgd_trains_as_if_nothing_had_happened(kind: str) -> None:
    """A rotation does not matter to gradient descent, nor to its momentum and decay; a mean taken off would."""

    def trained(change: bool | None) -> Tensor:
        torch.manual_seed(0)
        model = MODELS[kind]().train()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
        for number in range(6):
            if number == 3 and change is not None:
                config = pcn.PCNConfig(rank=1.0, skip_larger=False, centred=change)
                pcn.compress_(model, [batch(kind, 99, 64)[0]], config, optimizer=optimizer)
            optimizer.zero_grad()
            loss_of(model, batch(kind, number)).backward()
            optimizer.step()
        return model.eval()(batch(kind, 7)[0])

    expected = trained(None)
    torch.testing.assert_close(trained(False), expected, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(trained(True), expected, rtol=1e-5)


def test_what_is_kept_are_the_leading_directions_of_the_second_moment() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4, bias=False).double()
    x = torch.randn(200, 6, dtype=torch.double) * torch.tensor([3.0, 2, 1, 1, 1, 1]).double() + 5
    model = nn.Sequential(layer)
    vectors = torch.linalg.eigh(x.T @ x)[1][:, -2:]
    pcn.compress_(model, [x], pcn.PCNConfig(rank=2, skip_larger=False, centred=False))
    torch.testing.assert_close(model(x), (x @ vectors @ vectors.T) @ layer.weight.T, rtol=1e-8, atol=1e-8)
    mean = x.mean(0)
    assert float((model[0].basis[:, 0] @ mean).abs() / mean.norm()) > 0.99  # the largest of them is nearly the mean


@pytest.mark.parametrize("kind", BARE)
@pytest.mark.parametrize("options", [{}, {"output_rank": 0.5}, {"kernel_rank": 2}, {"keep_outputs": 0.5}])
def test_counts_files_and_plain_layers_have_no_biases_either(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model, (x, _) = without_biases(kind).eval(), batch(kind, 1, 64)
    parent = copy.deepcopy(model)
    plan = pcn.compress_(model, [x], pcn.PCNConfig(**HALF, **options))
    counted = sum(layer.trainable_after for layer in plan.layers.values())
    held = [module for module in model.modules() if isinstance(module, PCModule | nn.Linear | nn.Conv2d)]
    assert counted == sum(p.numel() for module in held for p in module.parameters())
    assert pcn.Plan.from_json(plan.to_json()) == plan
    pcn.save(model, tmp_path / "saved")
    loaded = pcn.load(parent, tmp_path / "saved")
    assert list(loaded.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)
    for form in ("dense", "factored"):
        plain = pcn.to_plain(model, form=form)
        torch.testing.assert_close(plain(x), model(x), rtol=1e-8, atol=1e-8)
        assert [name for name in biased(plain) if "norm" not in name] == biased(model)


def test_layers_that_have_a_bias_keep_it() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 4)).double(), torch.randn(64, 8, dtype=torch.double) + 1
    expected, bias = model(x), model[0].bias.detach().clone()
    plan = pcn.compress_(model, [x], pcn.PCNConfig(**WHOLE))
    torch.testing.assert_close(model[0].bias.detach(), bias)
    torch.testing.assert_close(model(x), expected)
    assert plan.layers["0"].bias_after


def test_one_layer_may_be_left_uncentred_beside_another_that_reads_the_same() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Linear(8, 4, bias=False) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.first(x), self.second(x)], 1)

    torch.manual_seed(0)
    model, x = Two().double(), torch.randn(64, 8, dtype=torch.double) + 3
    stats = pcn.analyze(model, [x])
    assert stats.layers["first"] == stats.layers["second"]
    config = pcn.PCNConfig(rank=1, skip_larger=False, layers={"second": pcn.LayerRule(centred=False)})
    plan = pcn.make_plan(model, stats, config)
    assert [layer.centred for layer in plan.transformed] == [True, False]
    plan.apply_(model, stats)
    assert biased(model) == ["first.bias"]
    second = torch.linalg.eigh(x.T @ x)[1][:, -1]
    centred = x - x.mean(0)
    for found, expected in ((model.first, torch.linalg.eigh(centred.T @ centred)[1][:, -1]), (model.second, second)):
        torch.testing.assert_close((found.basis[:, 0] @ expected).abs(), torch.ones((), dtype=torch.double))


@pytest.mark.parametrize("kind", BARE)
def test_within_a_budget_too(kind: str) -> None:
    model, (x, _) = without_biases(kind), batch(kind, 1, 64)
    had, trained = biased(model), sum(p.numel() for p in model.parameters())
    budget = pcn.Budget(params=0.7, step=1, config=pcn.PCNConfig(centred=False))
    plan = pcn.compress_(model, [x], budget)
    assert plan.transformed
    assert all(not layer.centred for layer in plan.transformed)
    assert biased(model) == had
    assert sum(p.numel() for p in model.parameters()) <= 0.7 * trained


def test_it_fades_without_a_bias() -> None:
    """What the cut takes away is the mean's part too, so no bias has to make up for it."""
    model, (x, targets) = without_biases("dense").train(), batch("dense", 1, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    switch = pcn.Switch(model, optimizer, pcn.PCNConfig(**HALF), at=1, fade=2)
    switch.after_epoch(1, [x])
    for number in (1, 2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), targets).backward()
        optimizer.step()
        before = model(x)
        switch.after_step(number, [x])
    assert isinstance(model[2], PCLinear)
    assert biased(model) == []
    assert before.shape == (64, CLASSES)
    with pytest.raises(
        pcn.ConfigError, match=r"cannot fade: it has no bias, .* or have it read its input as it is \(centred=False\)"
    ):
        pcn.Switch(without_biases("dense"), None, pcn.PCNConfig(rank=0.5, skip_larger=False), at=1, fade=2)


def test_a_mean_without_a_bias_is_refused() -> None:
    layer = PCConv2d(4, 4, 3, rank=2, bias=False)
    assert "bias=False" in repr(layer)
    state = layer.state_dict() | {"mean": torch.ones(4)}
    with pytest.raises(RuntimeError, match="mean is not zero, and the layer has no bias that makes up for it"):
        layer.load_state_dict(state)


@pytest.mark.parametrize("bias", [False, True])
def test_a_trained_basis_leaves_the_mean_at_zero(bias: bool) -> None:
    layer = PCLinear(4, 4, rank=2, bias=bias, centred=False, train_basis=True)
    assert [name for name, _ in layer.named_parameters()] == ["weight", *(["bias"] if bias else []), "basis"]
    assert PCConv2d(4, 4, 3, rank=2, bias=bias, centred=False).centred is False
    assert ("centred=False" in repr(layer)) == bias  # without a bias no layer is
    with pytest.raises(RuntimeError, match="mean is not zero, and the layer was made to" if bias else "has no bias"):
        layer.load_state_dict(layer.state_dict() | {"mean": torch.ones(4)})


@pytest.mark.parametrize("kind", MODELS)
def test_a_trained_basis_is_counted_as_it_is_trained(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, (x, targets) = MODELS[kind](), batch(kind, 1, 64)
    parent, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.1)
    plan = pcn.compress_(model, [x], pcn.PCNConfig(**HALF, train_basis=True), optimizer=optimizer)
    loss_of(model, (x, targets)).backward()
    optimizer.step()
    for layer in plan.transformed:
        module = model.get_submodule(layer.name)
        assert layer.trainable_after == sum(p.numel() for p in module.parameters())
        assert layer.stored_after == sum(t.numel() for t in (*module.parameters(), *module.buffers()))
        assert not module.mean.any()
    pcn.save(model, tmp_path / "saved")
    loaded = pcn.load(parent, tmp_path / "saved")
    assert [name for name, _ in loaded.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert not any(hasattr(module, "centred") for module in pcn.to_plain(model).modules())


@pytest.mark.parametrize("shift", [0.0, 3.0, 10.0])
def test_layers_of_a_large_mean_have_patterns_of_taps_too(shift: float) -> None:
    """Whether a batch shows enough of what they read goes by how that varies, be its mean taken off or not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 16, 3, bias=False), nn.ReLU(), nn.Conv2d(16, 16, 3, bias=False)).double()
    x = torch.randn(32, 16, 10, 10, dtype=torch.double) + shift
    stats, config = pcn.analyze(model, [x]), pcn.PCNConfig(centred=False)
    for patterns in (None, True):
        plan = pcn.make_plan(model, stats, pcn.Budget(params=0.4, step=1, patterns=patterns, config=config))
        assert all(layer.kernel_rank is not None for layer in plan.transformed)
    constant = [torch.full_like(x[:1], shift), x]
    plan = pcn.make_plan(model, pcn.analyze(model, constant), pcn.Budget(params=0.4, step=1, config=config))
    assert [layer.kernel_rank for layer in plan.transformed] == [None, None]
    assert all("read little but its mean in the first batch" in str(layer.note) for layer in plan.transformed)


def test_an_optimizer_that_takes_no_biases_can_follow() -> None:
    """Muon trains matrices alone; a layer that gains a bias would have to have that elsewhere."""
    model = without_biases("dense").float()
    muon = torch.optim.Muon(model.parameters())
    with pytest.raises(
        pcn.PlanError, match=r"Muon does not take the new parameters .* have them gain none \(centred=False\)"
    ):
        pcn.Switch(model, muon, pcn.PCNConfig(rank=0.5, skip_larger=False), at=1)
    switch = pcn.Switch(model, muon, pcn.PCNConfig(**HALF), at=1)
    assert switch.after_epoch(1, [torch.randn(64, 5)]) is not None
    assert {id(p) for group in muon.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("count", [5, 30, 40])
def test_as_many_directions_as_samples_are_known_where_no_mean_is_taken_off(
    count: int, recwarn: pytest.WarningsRecorder
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(40, 6, bias=False)).double(), torch.randn(count, 40, dtype=torch.double) + 1
    expected, stats = model(x), pcn.analyze(model, [x])
    worths = [pcn.Evenly()(model, each, ["0"], [])["0"] for each in (stats, stats.about_zero(["0"]))]
    assert [int(worth.argmax()) for worth in worths] == [min(count - 1, 12), min(count, 12)]
    plan = pcn.compress_(model, [x], pcn.PCNConfig(rank=count, skip_larger=False, centred=False))
    torch.testing.assert_close(model(x), expected)
    assert (plan.layers["0"].note is None) == (count == 40)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="5 samples of 40 inputs show 5 directions, and the others of 6 are made up"):
        pcn.compress_(nn.Sequential(nn.Linear(40, 6)), [x[:5].float()], pcn.PCNConfig(**HALF | {"rank": 6}))


def test_no_bias_is_measured_where_none_is_gained() -> None:
    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.Tanh(), nn.Linear(256, 64, bias=False), nn.Linear(64, 64))
    model.append(nn.Linear(64, 64))
    config = pcn.PCNConfig(centred=False, train_basis=True, layers={"4": pcn.LayerRule(centred=True)})
    budget = pcn.Budget(memory_mib=0.9, config=config)
    costs = pcn.measure_costs(model, torch.randn(8, 64), budget, times=False)
    of_rank = replace(config, rank=8, skip_larger=False, layers={"4": pcn.LayerRule(8, centred=True)})
    plan = pcn.compress_(model, [torch.randn(600, 64)], of_rank)
    for layer in plan.transformed:
        module, usage = model.get_submodule(layer.name), costs.layers[layer.name].tried[8, None]
        assert usage.weights_bytes == sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
        assert usage.gradients_bytes == sum(p.nbytes for p in module.parameters())


def test_a_state_with_biases_is_not_loaded_where_there_are_none() -> None:
    def switched(**how: Any) -> pcn.Switch:
        switch = pcn.Switch(without_biases("dense"), None, pcn.PCNConfig(rank=0.5, skip_larger=False, **how), at=1)
        switch.after_epoch(1, [batch("dense", 1, 64)[0]])
        return switch

    with pytest.raises(pcn.PlanError, match=r"'0' has rank .* trained outputs, a bias in it and .* no bias in this"):
        switched(centred=False).load_state_dict(switched().state_dict())


def test_dimensions_and_subspaces_that_a_switch_looks_at_are_those_that_it_would_keep() -> None:
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 10, bias=False)), []
    x = torch.randn(400, 64) * torch.linspace(1, 0.1, 64) + 5
    stats, config = pcn.analyze(model, [x]), pcn.PCNConfig(skip_larger=False, centred=False)
    switch = pcn.Switch(model, None, config, at=pcn.SubspacesSettle(), log=seen.append)
    switch.after_epoch(1, [x])
    plan = pcn.make_plan(model, stats, config)
    assert seen == [{"epoch": 1, **{f"effective_dimension/{name}": layer.rank for name, layer in plan.layers.items()}}]
    second_moments = stats.about_zero(stats.layers)
    for name, directions in switch._seen.subspaces.items():
        torch.testing.assert_close(directions, second_moments.basis(name, plan.layers[name].rank).float())


def test_centred_layers_do_not_go_by_statistics_about_zero() -> None:
    """Their mean would be 0, and what is left of them would lose it."""
    model, x = without_biases("dense"), batch("dense", 1, 64)[0]
    stats, config = pcn.analyze(model, [x]), pcn.PCNConfig(rank=0.5, skip_larger=False)
    plan, about_zero = pcn.make_plan(model, stats, config), stats.about_zero(["2"])
    said = "statistics about zero, as '2' has, cannot be those of a layer that is centred"
    for wish in (config, pcn.Budget(params=0.9, step=1)):
        with pytest.raises(pcn.StatisticsError, match=said):
            pcn.make_plan(model, about_zero, wish)
    with pytest.raises(pcn.StatisticsError, match=said):
        plan.apply_(model, about_zero)
    only = pcn.PCNConfig(rank=0.5, skip_larger=False, layers={"2": pcn.LayerRule(centred=False)})
    expected = pcn.make_plan(model, stats, only)
    assert [layer.rank for layer in pcn.make_plan(model, about_zero, only).transformed] == [
        layer.rank for layer in expected.transformed
    ]
    expected.apply_(model, about_zero)
