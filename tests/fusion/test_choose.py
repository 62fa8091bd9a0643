"""The form that was measured as the fastest is taken, for every layer that has a choice."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import pcn
from fusion.networks import IMAGES, NETWORKS, Residual, transformed
from pcn import ConfigError
from pcn.config import LayerRule
from pcn.fusion import choose, choose_forms, fuse_
from pcn.fusion.layers import FusedLayer
from pcn.models.cifar_resnet import CIFARResNet
from pcn.nn import PCConv2d


def test_the_fastest_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks cannot be relied on here: each form takes as long as the test says."""
    slow = {"fused": 2.0, "factored": 3.0, "folded": 1.0}
    timed: list[str] = []

    def pretended(part: nn.Module, like: Tensor) -> float:
        layer = next(module for module in part if isinstance(module, FusedLayer))
        timed.append(layer.use.form)
        assert like.shape[1] == layer.basis.shape[0]
        return slow[layer.use.form]

    monkeypatch.setattr(choose, "time_s", pretended)
    model, batch = transformed(Residual(), keep=("conv",)), torch.randn(IMAGES, dtype=torch.float64)
    assert set(choose_forms(model, batch).values()) == {"folded"}
    assert len(timed) < 3 * 6  # layers of the same sizes are timed once
    forms = choose_forms(model, batch, among=["fused", "factored"])
    assert forms == {name: "factored" if name == "fc" else "fused" for name in forms}
    assert fuse_(model, batch, forms=forms).forms == forms


def test_what_is_kept_for_the_way_back_counts_beside_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection stands in the place of the full width, but behind a sum, where that is kept in any case."""
    model, batch = transformed(Residual(), keep=("conv", "fc")), torch.randn(IMAGES, dtype=torch.float64)
    taken = {"fused": 1.03, "factored": 1.03, "folded": 1.0}  # ranks are half of the width: 3/2 or 5/2 of it are kept

    def pretended(part: nn.Module, like: Tensor) -> float:
        return taken[next(module for module in part if isinstance(module, FusedLayer)).use.form]

    monkeypatch.setattr(choose, "time_s", pretended)
    monkeypatch.setattr(choose, "_chosen", lambda choices: {name: each.best for name, each in choices.items()})
    behind_sum = {"second.conv1"}  # its input is read by the next sum too
    forms = choose_forms(model, batch)
    assert {name for name, form in forms.items() if form == "folded"} == behind_sum
    assert set(forms.values()) == {"folded", "fused"}
    taken["fused"] = 0.97
    assert choose_forms(model, batch) == forms  # too little for more memory
    taken["fused"] = 0.94
    assert set(choose_forms(model, batch).values()) == {"fused"}
    taken["fused"] = taken["factored"] = 1.1
    assert set(choose_forms(model, batch).values()) == {"folded"}


def test_what_a_layer_with_another_basis_reads_is_kept_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block's shortcut is a convolution: with its own basis it keeps all of what both of them read."""
    taken = {"fused": 0.97, "factored": 1.1, "folded": 1.0}
    layers = ("stage1.0.conv1", "stage1.0.conv2")

    def pretended(part: nn.Module, like: Tensor) -> float:
        return taken[next(module for module in part if isinstance(module, FusedLayer)).use.form]

    monkeypatch.setattr(choose, "time_s", pretended)
    for rank, form in [(4, "fused"), (2, "folded")]:  # of the shortcut; with the same basis they share a projection
        model, batch = CIFARResNet(1, 8), torch.randn(4, 3, 8, 8)
        rules = {"stage1.0.shortcut.conv": LayerRule(rank=rank)}
        pcn.compress_(model, [batch], pcn.PCNConfig(rank=4, exclude=("conv1", "fc"), layers=rules))
        forms = choose_forms(model, batch)
        assert tuple(forms[name] for name in layers) == (form, "fused")


@pytest.mark.parametrize(
    ("others", "folding_s", "folded"),
    [
        ({}, 1.0, ""),  # 1,536 numbers fewer, 768 more, and room for 512
        ({"stage3.0.conv2": 24}, 1.0, ""),  # 1,408 fewer
        ({"stage3.0.conv2": 24, "stage3.1.conv2": 28}, 1.0, "stage2.1.conv1"),  # 1,216 fewer; it keeps 512 more
        ({"stage3.0.conv2": 24, "stage3.1.conv2": 28}, 1.3, "stage3.1.conv1"),  # which keeps 256 more
        ({"stage3.0.conv2": 24, "stage3.1.conv2": 28}, 9.0, "stage3.1.conv1"),
    ],
)
def test_all_layers_together_keep_no_more_than_the_parents(
    others: dict[str, int], folding_s: float, folded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of layers that keep a projection besides what others keep anyway those are folded that this slows down least."""
    model, batch = CIFARResNet(2, 8), torch.randn(32, 3, 8, 8)
    rules = {name: LayerRule(rank=rank) for name, rank in others.items()}
    config = pcn.PCNConfig(rank=0.5, exclude=("conv1", "fc", "stage1.*", "stage2.0.*"), layers=rules)
    pcn.compress_(model, [batch], config)

    def pretended(part: nn.Module, like: Tensor) -> float:
        form = next(module for module in part if isinstance(module, FusedLayer)).use.form
        slow = isinstance(part, choose._Branching) and like.shape[1:] == (16, 4, 4)  # stage2.1.conv1
        return {"fused": 0.9, "factored": 0.95, "folded": folding_s if slow else 1.0}[form]

    monkeypatch.setattr(choose, "time_s", pretended)
    forms = choose_forms(model, batch[:4])
    assert {name: form for name, form in forms.items() if form != "fused"} == ({folded: "folded"} if folded else {})


@pytest.mark.parametrize(("folding_s", "form"), [(1.01, "folded"), (1.1, "factored")])
def test_layers_that_stand_by_themselves_are_folded_only_where_that_is_best_for_each(
    folding_s: float, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense layers behind no norm keep what they read and a projection, and are much faster with it."""
    model, batch = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(200, 64)
    pcn.compress_(model, [batch], pcn.PCNConfig(rank=8))
    seconds = {"factored": 1.0, "folded": folding_s}

    def pretended(part: nn.Module, like: Tensor) -> float:
        return seconds[next(module for module in part if isinstance(module, FusedLayer)).use.form]

    monkeypatch.setattr(choose, "time_s", pretended)
    assert set(choose_forms(model, batch).values()) == {form}


def test_without_norms_only_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = transformed(Residual(), keep=("conv", "fc")), torch.randn(IMAGES, dtype=torch.float64)
    monkeypatch.setattr(choose, "time_s", lambda part, like: 1.0 if isinstance(part[0], FusedLayer) else 1.01)
    assert set(choose_forms(model, batch, norms=False).values()) == {"folded"}


def test_a_layer_whose_input_others_read_is_timed_with_the_full_width_written(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = transformed(Residual(), keep=("conv", "fc")), torch.randn(IMAGES, dtype=torch.float64)
    timed: set[tuple[str, bool]] = set()

    def looked_at(part: nn.Module, like: Tensor) -> float:
        outputs = part(like)
        branches = isinstance(outputs, tuple)
        if branches:  # what goes elsewhere is what the batch norm and its ReLU make of the input
            stock = nn.functional.relu(nn.functional.batch_norm(like, None, None, *_affine(part[0]), training=True))
            torch.testing.assert_close(outputs[0], stock)
        timed.add((next(module for module in part if isinstance(module, FusedLayer)).use.form, branches))
        return 1.0

    monkeypatch.setattr(choose, "time_s", looked_at)
    choose_forms(model, batch)
    assert timed == {(form, branches) for form in ("fused", "factored", "folded") for branches in (True, False)}


def _affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(norm, nn.BatchNorm2d)
    return norm.weight, norm.bias


@pytest.mark.parametrize("name", ["residual", "linear"])
def test_every_form_can_be_timed(name: str) -> None:
    make, shape = NETWORKS[name]
    model, batch = make(), torch.randn(shape, dtype=torch.float64)
    twin = copy.deepcopy(model)
    drawn = torch.get_rng_state()
    forms = choose_forms(model, batch)
    assert forms
    assert torch.equal(torch.get_rng_state(), drawn)  # training goes on with the same random numbers
    for one, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(one, other)  # looking leaves no trace
    assert [type(module) for module in model.modules()] == [type(module) for module in twin.modules()]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_where_there_are_no_kernels_nothing_is_called_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = transformed(Residual(), keep=("conv",)), torch.randn(IMAGES, dtype=torch.float64)
    monkeypatch.setattr(choose, "time_s", lambda part, like: 1.0)
    assert "fused" in choose_forms(model, batch, among=["fused", "factored"]).values()
    monkeypatch.setattr(choose, "fuses", lambda like: False)
    assert set(choose_forms(model, batch, among=["fused", "factored"]).values()) == {"factored"}
    assert set(choose_forms(model, batch, among=["fused"]).values()) == {"factored"}


def test_a_choice_among_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="give at least one of fused, factored, folded"):
        choose_forms(Residual(), torch.randn(IMAGES), among=[])


def test_what_is_fastest_is_measured_once_and_remembered_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    import pcn
    from pcn.fusion import fastest

    model, batch = CIFARResNet(1, 8), torch.randn(4, 3, 8, 8)
    pcn.compress_(model, [batch], pcn.PCNConfig(rank=0.5, exclude=("conv1", "fc")))
    found = fastest.fastest_forms(model, batch)
    assert found
    monkeypatch.setattr(fastest, "choose_forms", lambda *_, **__: pytest.fail("measured again"))
    assert fastest.fastest_forms(model, batch) == found
    plan = pcn.get_plan(model)
    assert plan is not None
    assert list(plan.forms.values()) == [found]
    assert next(iter(plan.forms)).endswith("float32, (4, 3, 8, 8)")
    assert pcn.Plan.from_json(plan.to_json()) == plan
    melted = replace(plan, forms={"somewhere": dict.fromkeys(found, "melted")})
    with pytest.raises(pcn.PCNError, match="the form 'melted'"):
        pcn.Plan.from_json(melted.to_json())
    with pytest.raises(pcn.PlanError):
        plan.with_rank("no such layer", 2)
    assert plan.with_rank(next(iter(found)), 2).forms == {}  # they were timed at other ranks
    with pytest.raises(pytest.fail.Exception):  # of another size of batch nothing is known
        fastest.fastest_forms(model, batch[:2])


def test_without_norms_only_what_is_folded_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = transformed(Residual(), keep=("conv",)), torch.randn(IMAGES, dtype=torch.float64)
    stock = {name: type(module) for name, module in model.named_modules()}
    timed: list[bool] = []

    def pretended(part: nn.Module, like: Tensor) -> float:
        assert len(part) == 1  # the layer alone
        timed.append(isinstance(part[0], FusedLayer))
        return 1.0 if timed[-1] == isinstance(part[0], PCConv2d) else 2.0

    monkeypatch.setattr(choose, "time_s", pretended)
    forms = choose_forms(model, batch, norms=False)
    assert set(timed) == {False, True}  # one by the code that it has, one folded
    assert set(forms.values()) == {"factored", "folded"}
    before = model(batch)
    assert fuse_(model, batch, forms=forms, norms=False).forms == forms
    changed = {name for name, module in model.named_modules() if type(module) is not stock[name]}
    assert changed == {name for name, form in forms.items() if form == "folded"}
    torch.testing.assert_close(model(batch), before)


def test_forms_are_remembered_for_norms_as_they_are_by_themselves() -> None:
    from pcn.fusion import fastest_forms

    model, batch = CIFARResNet(1, 8), torch.randn(4, 3, 8, 8)
    pcn.compress_(model, [batch], pcn.PCNConfig(rank=0.5, exclude=("conv1", "fc")))
    found = {norms: fastest_forms(model, batch, norms=norms) for norms in (True, False)}
    assert "fused" not in found[False].values()
    plan = pcn.get_plan(model)
    assert plan is not None
    assert list(plan.forms.values()) == list(found.values())
    assert pcn.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("frozen", ["0.weight", "2.bias", "2.weight"])
def test_layers_that_are_frozen_have_a_fastest_form_too(frozen: str) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model.get_parameter(frozen).requires_grad_(False)
    x = torch.randn(256, 32)
    plan = pcn.compress_(model, [x], pcn.PCNConfig(rank=0.25))
    assert choose_forms(model, x).keys() == {layer.name for layer in plan.transformed}
