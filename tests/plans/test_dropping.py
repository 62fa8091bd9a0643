"""What goes when outputs are dropped: whatever carries the channel, in every layer that shares it, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from graph.coupling import Wired
from pcn import LayerRule, PCNConfig
from pcn.config import BASES, ORDERS, BasisKind, Order
from pcn.plans.dropping import row_norms

IMAGES = (6, 3, 6, 6)


def full_basis(**options: Any) -> PCNConfig:
    return PCNConfig(rank=1.0, skip_larger=False, **options)


def plan_of(model: nn.Module, config: PCNConfig) -> tuple[pcn.Plan, pcn.Statistics]:
    model.double().eval()
    stats = pcn.analyze(model, [torch.randn(IMAGES, dtype=torch.float64)])
    return pcn.make_plan(model, stats, config), stats


def test_an_excluded_batch_norm_keeps_its_channels() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1)
    )
    plan, _ = plan_of(model, full_basis(keep_outputs=0.5, exclude=["1"]))
    assert plan.layers["0"].kept_outputs == 8
    assert plan.layers["0"].output_reason == "it is in '1', which is excluded by '1'"
    assert plan.layers["2"].kept_outputs == 4
    assert {name.partition(".")[0] for name in plan.slices} == {"2", "3", "4"}


def test_a_layer_keeps_a_channel_when_another_drops_them() -> None:
    """The channels of ``whole`` are those of ``small`` and ``large``: asked of it alone, all of ``small`` might go."""
    parts = {"small": nn.Conv2d(3, 2, 1), "large": nn.Conv2d(3, 6, 1), "whole": nn.Conv2d(3, 8, 1)}
    model = Wired(
        lambda m, x: m.reader(torch.cat([m.small(x), m.large(x)], 1) + m.whole(x)), reader=nn.Conv2d(8, 4, 1), **parts
    )
    for keep in (7, 4, 2):
        plan, stats = plan_of(model, full_basis(layers={"whole": LayerRule(rank=1.0, keep_outputs=keep)}))
        assert plan.layers["small"].kept_outputs >= 1
        assert plan.layers["large"].kept_outputs >= 1
        assert plan.layers["small"].kept_outputs + plan.layers["large"].kept_outputs == keep
        assert pcn.Plan.from_json(plan.to_json()) == plan
    with pytest.raises(pcn.ConfigError, match="other layers need them"):
        pcn.make_plan(model, stats, full_basis(layers={"whole": LayerRule(rank=1.0, keep_outputs=1)}))


def test_the_counts_of_a_depthwise_convolution_follow_its_channels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 2, 1))
    plan, stats = plan_of(model, full_basis(layers={"0": LayerRule(rank=2, keep_outputs=5)}))
    plan.apply_(model, stats)
    assert plan.layers["1"].trainable_after == sum(p.numel() for p in model[1].parameters()) == 5 * (9 + 1)
    assert plan.layers["1"].flops_after == 2 * 4 * 5 * 9


@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("order", ["truncate_first", "project_first", "kept_block"])
def test_one_channel_may_be_left_of_each_group(groups: int, order: Any) -> None:
    """A grouped convolution then looks like a depthwise one, and a depthwise one like a plain one."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=groups), nn.ReLU(), nn.Conv2d(8, 2, 1)
    )
    keep = 2 if groups == 2 else 1
    plan, stats = plan_of(model, full_basis(layers={"0": LayerRule(rank=1.0, keep_outputs=keep)}, order=order))
    assert plan.layers["0"].kept_outputs == plan.layers["2"].kept_inputs == keep
    plan.apply_(model, stats)
    assert pcn.fold_(model) == []
    assert (model[2].in_channels, model[2].groups) == (8, groups)


def test_a_reader_nobody_can_transform_keeps_its_channels() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.conv2d(x, self.weight)

    parts = {"a": nn.Conv2d(3, 8, 1), "own": Own(), "b": nn.Conv2d(8, 2, 1)}
    model = Wired(lambda m, x: m.b((hidden := m.a(x)) + m.own(hidden)), **parts)
    plan, _ = plan_of(model, full_basis(keep_outputs=0.5))
    assert plan.layers["a"].output_reason == "'own' reads it, and Own cannot be transformed"
    assert not plan.slices


def test_a_layer_under_two_names_drops_its_channels_once() -> None:
    layer = nn.Conv2d(8, 8, 3, padding=1)
    parts = {"a": nn.Conv2d(3, 8, 1), "one": layer, "two": layer, "b": nn.Conv2d(8, 2, 1)}
    model = Wired(lambda m, x: m.b(torch.relu(m.one(torch.relu(m.two(m.a(x)))))), **parts)
    plan, stats = plan_of(model, full_basis(keep_outputs=0.5))
    assert "two" not in plan.layers
    assert plan.layers["one"].kept_inputs == plan.layers["one"].kept_outputs == 4
    plan.apply_(model, stats)
    assert model.one is model.two
    assert model.one.out_channels == 4


@settings(max_examples=12)
@given(
    live=st.sets(st.integers(0, 15), min_size=1, max_size=15),
    more=st.integers(0, 16),
    groups=st.sampled_from([1, 2]),
    order=st.sampled_from(ORDERS),
    basis=st.sampled_from([basis for basis in BASES if basis != "balanced"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_channels_that_are_always_zero_go_first_whatever_the_rank(
    live: set[int], more: int, groups: int, order: Order, basis: BasisKind, dtype: torch.dtype
) -> None:
    """A basis of more directions than the input has holds some without variance, which may point anywhere."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16 * groups, 3), nn.ReLU(), nn.Conv2d(16 * groups, 4, 1, groups=groups))
    model = nn.Sequential(*layers).to(dtype).eval()
    dead = [channel for channel in range(16 * groups) if channel % 16 not in live]
    with torch.no_grad():
        model[0].weight[dead], model[0].bias[dead] = 0, -1
    images = torch.randn(40, 3, 6, 6, dtype=dtype)
    before = model(images).detach()
    config = PCNConfig(
        rank=None,
        layers={"0": LayerRule(keep_outputs=len(live) * groups), "2": LayerRule(rank=min(len(live) + more, 16))},
        order=order if basis == "pca" else "truncate_first",
        basis=basis,
        skip_larger=False,
    )
    stats = pcn.analyze(model, [images])
    plan = pcn.make_plan(model, stats, config)
    assert plan.kept("0.weight", 0) == tuple(channel for channel in range(16 * groups) if channel % 16 in live)
    if basis == "pca":
        plan.apply_(model, stats)
        assert (model(images) - before).norm() < 1e-5 * before.norm()


@settings(max_examples=8)
@given(width=st.integers(2, 24), rank=st.integers(1, 24), groups=st.sampled_from([1, 3]))
def test_where_all_directions_vary_a_row_counts_with_all_of_its_entries(width: int, rank: int, groups: int) -> None:
    model = nn.Sequential(nn.Conv2d(width * groups, groups, 1, groups=groups))
    stats = pcn.analyze(model, [torch.randn(20, width * groups, 6, 6)])
    rank = min(rank, width)
    assert torch.equal(row_norms(stats, "0", rank), stats.basis("0", rank).abs().sum(1))
