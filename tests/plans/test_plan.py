"""A plan says what the transformed model is, before there is one."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pcn import Budget, ConfigError, LayerRule, PCNConfig, Plan, PlanError, analyze, get_plan, make_plan
from pcn.config import ORDERS
from pcn.costs.count import count, flops_per_sample
from small import ConvNet, Mlp, Residual, conv_net, images, vectors

SMALL = PCNConfig(rank=0.25, exclude=["fc1"])


def conv_plan(**options: object) -> tuple[ConvNet, Plan]:
    model = conv_net()
    rules = {"conv1": LayerRule(keep_outputs=5), "conv2": LayerRule(rank=3, keep_outputs=8), "conv3": LayerRule(rank=2)}
    config = PCNConfig(rank=None, layers=rules, skip_larger=False, **options)
    return model, make_plan(model, None, config, example=images(2))


@settings(max_examples=6)
@given(
    st.floats(0.05, 1),
    st.floats(0.2, 1),
    st.sampled_from(ORDERS),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 4]),
)
def test_the_counts_are_those_of_the_model_that_comes_out(
    rank: float, keep: float, order: str, train_basis: bool, keep_dropped: bool, multiple: int
) -> None:
    model = conv_net()
    config = PCNConfig(
        rank=rank,
        keep_outputs=keep,
        order=order,
        multiple_of=multiple,
        skip_larger=False,
        train_basis=train_basis,
        keep_dropped=keep_dropped,
    )
    plan = make_plan(model, None, config, example=images(2))
    norms = count(model).trainable - plan.trainable_before
    assert norms == count(nn.ModuleList([model.bn1, model.bn2])).trainable
    plan.reshape_(model)
    norms = count(nn.ModuleList([model.bn1, model.bn2])).trainable
    assert count(model).trainable - norms == plan.trainable_after
    for layer in plan.layers.values():
        module = model.get_submodule(layer.name)
        assert sum(p.numel() for p in module.parameters()) == layer.trainable_after
        assert count(module).total == layer.stored_after
        assert module.weight.shape[0] == layer.kept_outputs


def test_flops_are_those_that_torch_counts() -> None:
    model, plan = conv_plan()
    before = sum(layer.flops_before for layer in plan.layers.values())
    assert before == flops_per_sample(model, images(2))
    plan.reshape_(model)
    after = sum(layer.flops_after for layer in plan.layers.values())
    assert after == flops_per_sample(model, images(1)) == flops_per_sample(model, images(100))


def test_a_frozen_part_is_stored_and_computed_but_not_held_against_a_layer() -> None:
    model, x = Mlp(64), vectors(400)
    stats = analyze(model, [x])
    cut, kept = (make_plan(model, stats, PCNConfig(rank=8, keep_dropped=kept)) for kept in (False, True))
    assert [layer.name for layer in kept.transformed] == [layer.name for layer in cut.transformed] == ["fc1", "fc2"]
    one, other = cut.layers["fc2"], kept.layers["fc2"]
    assert other.stored_after - one.stored_after == 64 * 64
    assert other.flops_after - one.flops_after == 2 * 64 * 64
    assert "stored in them, with bases, frozen parts and means" in str(kept)
    config = PCNConfig(keep_dropped=True)
    assert make_plan(model, stats, Budget(params=0.6, config=config)).transformed
    with pytest.raises(ConfigError, match=r"FLOPs too small, even with every layer at its lowest rank.*100.0% of now"):
        make_plan(model, stats, Budget(flops=0.9, config=config))


def test_kept_indices_and_what_is_changed() -> None:
    _, plan = conv_plan()
    assert plan.kept("bn1.running_var", 0) == plan.kept("conv2.weight", 1) == (0, 1, 2, 3, 4)
    assert plan.kept("conv1.weight", 1) is None
    assert plan.kept("fc1.weight", 1) is None
    assert {name for name, layer in plan.layers.items() if layer.changed} == {"conv1", "conv2", "conv3"}
    assert [layer.name for layer in plan.transformed] == ["conv2", "conv3"]


def test_printed_it_says_what_is_kept_and_why_the_rest_is_left_alone() -> None:
    _, plan = conv_plan()
    text = str(plan)
    assert "8 -> 5 -> 3" in text
    assert "12 -> 8" in text
    assert "12 -> 8 -> 2 in 2 groups" in text
    assert "BatchNorm2d is not a Linear, Conv1d, Conv2d or Conv3d" in text
    assert "fc1, fc2: no rank asked for" in text
    assert (
        f"{plan.trainable_before:,} -> {plan.trainable_after:,} trainable in all linear and convolutional layers"
        in text
    )
    before, after = (
        sum(getattr(layer, side) for layer in plan.layers.values()) for side in ("flops_before", "flops_after")
    )
    assert f"{before:,} -> {after:,} FLOPs per sample" in text
    assert "conv1: inputs stay: no rank asked for" in text


def test_a_plan_that_changes_nothing_says_so() -> None:
    plan = make_plan(Mlp(), None, PCNConfig(rank=None))
    assert str(plan).startswith("nothing changes")
    assert not plan.transformed


def test_another_rank_by_hand() -> None:
    model, x = Mlp(), vectors()
    stats = analyze(model, [x])
    plan = make_plan(model, stats, SMALL)
    assert plan.layers["fc2"].rank == 6
    other = plan.with_rank("fc2", 9).with_rank("fc1", 2).with_rank("fc3", None)
    assert plan.layers["fc2"].rank == 6
    other.apply_(model, stats)
    assert (model.fc2.rank, model.fc1.rank, type(model.fc3)) == (9, 2, nn.Linear)
    assert other.layers["fc1"].reason is None
    assert Plan.from_json(other.to_json()) == other


def test_a_layer_left_alone_by_hand_trains_all_of_its_outputs() -> None:
    plan = make_plan(Mlp(), None, PCNConfig(rank=6, output_rank=0.5, skip_larger=False)).with_rank("fc2", None)
    assert plan.layers["fc2"].output_rank is None
    assert plan.layers["fc2"].trainable_after == plan.layers["fc2"].trainable_before
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("rank", [0, -1, 25, 2.0, True, "2"])
def test_a_rank_by_hand_must_exist(rank: object) -> None:
    plan = make_plan(Mlp(), None, SMALL)
    with pytest.raises(PlanError, match=r"'fc2' cannot have rank .*: give a whole number from 1 to 24, or None"):
        plan.with_rank("fc2", rank)


def test_a_rank_by_hand_for_an_unknown_layer_suggests_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"no layer 'fc4'; did you mean 'fc"):
        make_plan(Mlp(), None, SMALL).with_rank("fc4", 2)


def test_a_rank_by_hand_does_not_break_ties() -> None:
    model = Mlp()
    model.fc2.weight = nn.Parameter(torch.randn(24, 24))
    model.again = nn.Linear(24, 24)
    model.again.weight = model.fc2.weight
    plan = make_plan(model, None, PCNConfig(rank=3)).with_rank("fc2", 3)
    with pytest.raises(PlanError, match="'fc2' has a rank in the plan but must be left alone: its weight is shared"):
        plan.reshape_(model)


def test_a_model_carries_its_plan_and_copies_do_too() -> None:
    model = Residual()
    assert get_plan(model) is None
    plan = make_plan(model, None, PCNConfig(rank=3, exclude=["stem"])).reshape_(model)
    assert get_plan(model) is plan
    assert get_plan(nn.DataParallel(model)) is plan
    assert get_plan(torch.compile(model)) is plan
    assert get_plan(copy.deepcopy(model)) == plan


def test_the_architecture_alone_starts_afresh() -> None:
    model = Mlp()
    make_plan(model, None, SMALL).reshape_(model)
    basis = model.fc2.basis
    assert torch.allclose(basis.T @ basis, torch.eye(6), atol=1e-5)
    assert torch.equal(model.fc2.mean, torch.zeros(24))
    assert model(vectors()).isfinite().all()
