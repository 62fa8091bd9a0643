"""Layers that read their input as it is and train fewer outputs, which a frozen basis expands: output_rank alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from new_coordinates import MODELS, batch, loss_of
from pcn.fusion import fuse_
from pcn.layers import canonical_weight
from pcn.nn import PCConv2d, PCLinear, PCModule
from pcn.rewriting import directions
from pcn.statistics import eigen, forms
from pcn.statistics.moments import Covariance
from pcn.statistics.sketch import Sketch

HALF = {"rank": None, "output_rank": 0.5, "skip_larger": False}
COMBINED = [{}, {"centred": False}, {"keep_dropped": True}, {"basis": "random"}]


def few_outputs_(model: nn.Module) -> None:
    """Have the outputs of every layer lie in half of their dimensions, in each group."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) or type(module).__name__ == "Conv1D":
            weight = canonical_weight(module)
            groups = getattr(module, "groups", 1)
            with torch.no_grad():
                for rows in weight.chunk(groups):
                    basis = torch.linalg.qr(torch.randn(len(rows), (len(rows) + 1) // 2).double())[0]
                    rows.copy_((basis @ basis.T @ rows.flatten(1)).view_as(rows))


def last_of(model: nn.Sequential) -> str:
    return str(len(model) - 1)


def made(kind: str, **options: Any) -> tuple[nn.Sequential, pcn.Plan, Tensor]:
    """A model, trained by nobody, with output bases alone."""
    torch.manual_seed(0)
    model, x = MODELS[kind]().eval(), batch(kind, 1, 64)[0]
    return model, pcn.compress_(model, [x], pcn.PCNConfig(**HALF, **options)), x


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(list(MODELS)), st.booleans())
def test_where_outputs_lie_in_the_basis_nothing_changes(kind: str, centred: bool) -> None:
    torch.manual_seed(0)
    model, (x, _) = MODELS[kind]().eval(), batch(kind, 1, 64)
    few_outputs_(model)
    before, names = model(x), list(model.state_dict())
    config = pcn.PCNConfig(rank=None, output_rank=0.5, skip_larger=False, centred=centred, exclude=[last_of(model)])
    plan = pcn.compress_(model, [x], config)
    assert len(plan.transformed) == 2
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)
    assert pcn.fold_(model) == []
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)


def test_it_keeps_the_mean_of_what_comes_out_and_most_of_its_variance() -> None:
    """No other directions of that number keep more: these are the output's principal components."""
    torch.manual_seed(0)
    layer = nn.Linear(9, 6, bias=False).double()
    x = torch.randn(300, 9, dtype=torch.double) * torch.arange(1.0, 10) + 3
    y = layer(x).detach()
    vectors = torch.linalg.eigh(torch.cov(y.T))[1][:, -2:]
    model = nn.Sequential(copy.deepcopy(layer))
    pcn.compress_(model, [x], pcn.PCNConfig(rank=None, output_rank=2, skip_larger=False))
    torch.testing.assert_close(model(x), y.mean(0) + (y - y.mean(0)) @ vectors @ vectors.T, rtol=1e-9, atol=1e-9)

    model = nn.Sequential(layer)
    pcn.compress_(model, [x], pcn.PCNConfig(rank=None, output_rank=2, skip_larger=False, centred=False))
    vectors = torch.linalg.eigh(y.T @ y)[1][:, -2:]
    torch.testing.assert_close(model(x), y @ vectors @ vectors.T, rtol=1e-9, atol=1e-9)
    assert model[0].bias is None


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(2, 9), st.integers(2, 9), st.integers(0, 99))
def test_no_input_directions_of_that_number_lose_less(rank: int, inputs: int, outputs: int, seed: int) -> None:
    rank = min(rank, inputs, outputs - 1)
    torch.manual_seed(seed)
    layer = nn.Linear(inputs, outputs).double()
    x = torch.randn(200, inputs, dtype=torch.double) @ torch.randn(inputs, inputs, dtype=torch.double) + 1

    def lost(**how: Any) -> float:
        model = nn.Sequential(copy.deepcopy(layer))
        pcn.compress_(model, [x], pcn.PCNConfig(skip_larger=False, **how))
        return float((model(x) - layer(x)).detach().square().sum())

    least = lost(rank=rank, basis="response")
    assert lost(rank=None, output_rank=rank) == pytest.approx(least, rel=1e-5, abs=1e-9)
    assert lost(rank=rank) >= least * (1 - 1e-5) - 1e-9


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("options", COMBINED)
def test_counts_files_and_plain_layers(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    model, plan, x = made(kind, **options)
    held = [module for module in model.modules() if isinstance(module, PCModule | nn.Linear | nn.Conv2d)]
    assert len(plan.transformed) == sum(isinstance(module, PCModule) for module in held) > 1
    assert all(layer.rank is None for layer in plan.transformed)
    assert sum(layer.trainable_after for layer in plan.layers.values()) == sum(
        p.numel() for module in held for p in module.parameters()
    )
    assert sum(layer.stored_after for layer in plan.layers.values()) == sum(
        tensor.numel() for module in held for tensor in module.state_dict().values()
    )
    assert pcn.Plan.from_json(plan.to_json()) == plan
    pcn.save(model, tmp_path / "saved")
    loaded = pcn.load(MODELS[kind](), tmp_path / "saved").eval()
    torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)
    for form in ["dense"] if options.get("keep_dropped") else ["factored", "dense"]:
        torch.testing.assert_close(pcn.to_plain(model, form=form)(x), model(x), rtol=1e-9, atol=1e-9)
    if options.get("keep_dropped"):  # what is lost is kept beside it
        torch.manual_seed(0)
        torch.testing.assert_close(model(x), MODELS[kind]().eval()(x), rtol=1e-9, atol=1e-9)


def test_they_cost_what_the_shapes_say() -> None:
    _, plan, _ = made("convolutional")
    layer = plan.layers["2"]  # six channels to six, three by three, at three by three positions
    assert (layer.rank, layer.output_rank) == (None, 3)
    assert layer.flops_after == 2 * 9 * (3 * 6 * 9 + 6 * 3)
    assert layer.stored_after == 3 * 6 * 9 + 6 + 6 * 3
    assert "6 (3 trained)" in str(plan)
    assert "inputs stay: no rank asked for" in str(plan)


@pytest.mark.parametrize("kind", MODELS)
def test_momentum_is_the_gradients_of_what_is_trained(kind: str) -> None:
    """With V fixed, gradients of the core are Vᵀ times those of the weight, and so is their running mean."""
    torch.manual_seed(0)
    model = MODELS[kind]().train()
    few_outputs_(model)
    data = [batch(kind, number) for number in range(3)]
    stats = pcn.analyze(model, [batch(kind, 99, 64)[0]])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(**HALF, exclude=[last_of(model)]))
    small = copy.deepcopy(model)
    plan.apply_(small, stats)
    bare = torch.optim.SGD(small.parameters(), 1e-9, momentum=0.9)
    wide = torch.optim.SGD(model.parameters(), 1e-9, momentum=0.9)
    for optimizer, network in ((bare, small), (wide, model)):
        for each in data:
            optimizer.zero_grad()
            loss_of(network, each).backward()
            optimizer.step()
    plan.apply_(model, stats, optimizer=wide)
    for layer in plan.transformed:
        found, expected = (
            optimizer.state[network.get_submodule(layer.name).weight]["momentum_buffer"]
            for optimizer, network in ((wide, model), (bare, small))
        )
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    pcn.fold_(model, optimizer=wide)
    for layer in plan.transformed:
        module = model.get_submodule(layer.name)
        folded, basis = wide.state[module.weight]["momentum_buffer"], small.get_submodule(layer.name).output_basis
        core = bare.state[small.get_submodule(layer.name).weight]["momentum_buffer"]
        groups = getattr(module, "groups", 1)
        parts = zip(basis.chunk(groups), core.flatten(1).chunk(groups), strict=True)
        back = torch.cat([rows @ columns for rows, columns in parts])
        folded = folded.T if layer.kind == "transposed_linear" else folded.flatten(1)
        torch.testing.assert_close(folded, back, rtol=1e-6, atol=1e-9)


def test_adam_goes_on_with_squares_of_the_right_size() -> None:
    torch.manual_seed(0)
    model, (x, targets) = MODELS["dense"](), batch("dense", 1, 64)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    nn.functional.cross_entropy(model(x), targets).backward()
    optimizer.step()
    squares = optimizer.state[model[0].weight]["exp_avg_sq"].sum()
    config = pcn.PCNConfig(rank=None, layers={"0": pcn.LayerRule(output_rank=7)})
    pcn.compress_(model, [x], config, optimizer=optimizer)
    kept = optimizer.state[model[0].weight]["exp_avg_sq"]
    assert kept.shape == model[0].weight.shape
    assert 0.5 * squares < kept.sum() <= squares * (1 + 1e-9)


def test_what_it_reads_cannot_be_dropped_and_what_it_puts_out_can() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).double(), None
    x = torch.randn(64, 8, dtype=torch.double)
    rules = {"0": pcn.LayerRule(1.0, keep_outputs=4), "2": pcn.LayerRule(output_rank=3, keep_outputs=6)}
    rest = pcn.LayerRule(rank=5)
    stats = pcn.analyze(model, [x])
    with pytest.raises(pcn.ConfigError, match=r"'2' reads it as it is \(no rank asked for\); give '2' a rank"):
        pcn.make_plan(model, stats, pcn.PCNConfig(rank=None, layers={**rules, "4": rest}, skip_larger=False))
    config = pcn.PCNConfig(rank=None, layers={"2": rules["2"], "4": rest}, skip_larger=False)
    plan = pcn.make_plan(model, stats, config)
    assert (plan.layers["2"].kept_outputs, plan.layers["2"].output_rank) == (6, 3)
    plan.apply_(model, stats)
    assert model[2].output_basis.shape == (6, 3)
    assert model(x).shape == (64, 4)
    with pytest.raises(pcn.ConfigError, match="kernel_rank=2 beside output_rank, without a rank"):
        pcn.LayerRule(output_rank=3, kernel_rank=2)


def test_of_outputs_that_go_nothing_is_said() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4)).double(), torch.randn(10, 64).double()
    rules = {"0": pcn.LayerRule(output_rank=32, keep_outputs=16), "1": pcn.LayerRule(4)}
    plan = pcn.make_plan(model, pcn.analyze(model, [x]), pcn.PCNConfig(rank=None, layers=rules, skip_larger=False))
    layer = plan.layers["0"]
    assert (layer.kept_outputs, layer.output_rank, layer.note) == (16, None, None)  # all that are left are trained


def test_layers_that_would_not_get_smaller_stay() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).double(), torch.randn(64, 8).double()
    plan = pcn.make_plan(model, pcn.analyze(model, [x]), pcn.PCNConfig(rank=None, output_rank=4))
    assert plan.layers["0"].reason == (
        "output rank 4 of 8 would not make it smaller, the basis included (skip_larger=False insists)"
    )
    assert plan.layers["2"].reason == "no rank asked for, and all of its outputs are to be trained"


def test_directions_that_no_sample_shows_are_told() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64)).double(), torch.randn(10, 64).double()
    stats, config = pcn.analyze(model, [x]), pcn.PCNConfig(rank=None, output_rank=32, skip_larger=False)
    plan = pcn.make_plan(model, stats, config)
    assert plan.layers["0"].note == "10 samples of 64 inputs show 9 directions, and the others of 32 are made up"
    with pytest.warns(UserWarning, match="and the others of 32 are made up; give more calibration batches"):
        plan.apply_(model, stats)
    narrow = nn.Sequential(nn.Linear(8, 64)).double()
    plan = pcn.make_plan(narrow, pcn.analyze(narrow, [torch.randn(100, 8).double()]), config)
    assert plan.layers["0"].note is None  # more directions than inputs hold nothing, and lose nothing


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 2), st.integers(2, 5), st.integers(2, 40), st.sampled_from([1, 3]), st.booleans(), st.data())
def test_they_are_those_of_the_whole_covariance(
    groups: int, width: int, outputs: int, taps: int, both: bool, data: st.DataObject
) -> None:
    """Which is not formed where there are more outputs than what they are made of."""
    torch.manual_seed(0)
    rank = data.draw(st.integers(1, outputs))
    weight = torch.randn(groups, outputs, width, taps, dtype=torch.double)
    rows = torch.randn(99, groups, width, dtype=torch.double) * torch.arange(1, width + 1)
    inputs = Covariance(rows.mean(0))
    inputs.add(rows.unsqueeze(-1))
    covariance = inputs.covariance()
    if both:
        values, vectors = eigen.full(covariance)
        found = directions.output_directions(weight, directions.Directions(vectors, vectors, values), rank)
    else:
        found = directions.response_directions(weight, inputs, rank)
    torch.testing.assert_close(found.mT @ found, torch.eye(rank).double().expand(groups, -1, -1), rtol=0, atol=1e-9)
    whole = torch.einsum("gnmk,gml,gjlk->gnj", weight, covariance, weight)
    held = (found.mT @ whole @ found).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(held, torch.linalg.eigvalsh(whole).flip(-1)[:, :rank], rtol=1e-9, atol=1e-9 * held.max())


def test_heads_of_many_outputs_take_no_more_than_their_inputs() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 40_000, bias=False)), torch.randn(64, 4)
    before = model(x).detach()  # a covariance of so many outputs would take 12 GiB
    pcn.compress_(model, [x], pcn.PCNConfig(rank=None, output_rank=4, skip_larger=False))
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)


def test_what_is_known_of_very_wide_inputs_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "LARGEST_COVARIANCE", 16)
    monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 16)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16)).double()
    x = torch.randn(500, 6).double() @ torch.randn(6, 64).double() + 1
    stats, before = pcn.analyze(model, list(x.split(100)), max_rank=32), model(x)
    assert isinstance(stats.moments["0"], Sketch)
    pcn.make_plan(model, stats, pcn.PCNConfig(rank=None, output_rank=6, skip_larger=False)).apply_(model, stats)
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)


def test_fused_models_run_it_as_it_is() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(16, 8, 3)).double()
    x = torch.randn(4, 3, 9, 9).double()
    rules = {"3": pcn.LayerRule(output_rank=4), "6": pcn.LayerRule(rank=4)}
    pcn.compress_(model, [x], pcn.PCNConfig(rank=None, layers=rules, skip_larger=False))
    plain = copy.deepcopy(model)
    said = str(fuse_(model, x))
    assert "'6'" in said
    for mode in (True, False):
        torch.testing.assert_close(model.train(mode)(x), plain.train(mode)(x), rtol=1e-9, atol=1e-9)


def test_it_fades_and_resumes() -> None:
    torch.manual_seed(0)
    model, (x, targets) = MODELS["dense"]().train(), batch("dense", 1, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    switch = pcn.Switch(model, optimizer, pcn.PCNConfig(**HALF), at=1, fade=2)
    switch.after_epoch(1, [x])
    state = copy.deepcopy(switch.state_dict())
    again = copy.deepcopy(model)
    twin = torch.optim.SGD(again.parameters(), 0.02)
    resumed = pcn.Switch(again, twin, pcn.PCNConfig(**HALF), at=1, fade=2)
    resumed.load_state_dict(state)
    for each, stepper, network in ((switch, optimizer, model), (resumed, twin, again)):
        for number in (1, 2):
            stepper.zero_grad()
            nn.functional.cross_entropy(network(x), targets).backward()
            stepper.step()
            each.after_step(number, [x])
    assert isinstance(model[2], PCLinear)
    assert model[2].basis is None
    torch.testing.assert_close(again(x), model(x), rtol=1e-9, atol=1e-9)


def test_optimizers_that_take_no_biases_follow_where_none_is_gained() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False)), torch.randn(64, 8)
    optimizer = torch.optim.Muon(model.parameters(), 0.01)
    switch = pcn.Switch(model, optimizer, pcn.PCNConfig(**HALF, keep_dropped=True), at=1)
    switch.after_epoch(1, [x])
    assert [module.bias for module in (model[0], model[2])] == [None, None]
    assert {id(each) for each in optimizer.param_groups[0]["params"]} == {id(each) for each in model.parameters()}


def test_a_module_of_its_own() -> None:
    layer = PCConv2d(8, 6, 3, rank=None, output_rank=3, padding=1, groups=2, bias=False)
    assert list(layer.state_dict()) == ["weight", "output_basis"]
    assert layer.weight.shape == (6, 4, 3, 3)
    assert repr(layer).endswith("groups=2, bias=False, output_rank=3)")
    assert layer(torch.randn(2, 8, 5, 5)).shape == (2, 6, 5, 5)
    with pytest.raises(pcn.ConfigError, match="rank=None, output_rank=None: give a rank, or an output rank alone"):
        PCLinear(8, 6, rank=None)
    with pytest.raises(pcn.ConfigError, match="rank=None, output_rank=2, kernel_rank=2: give a rank"):
        PCConv2d(8, 6, 3, rank=None, output_rank=2, kernel_rank=2)


def test_exported_it_computes_the_same() -> None:
    model, _, x = made("convolutional")
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-9, atol=1e-9)
