"""Ranks for a budget: never above it, deterministic, and by scores that mean what they say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.costs.count import count, flops_per_sample
from planned_network import BATCH, network
from small import ConvNet


@settings(max_examples=15)
@given(params=st.floats(0.3, 1.0), step=st.integers(1, 16))
def test_the_budget_is_never_exceeded_and_the_same_question_gets_the_same_answer(params: float, step: int) -> None:
    model = network()
    stats = pcn.analyze(model, [BATCH])
    limit = int(params * count(model).trainable)
    try:
        config = pcn.fit_budget(model, stats, pcn.Budget(params, step=step))
    except pcn.ConfigError as error:
        assert "too small" in str(error)
        return
    assert pcn.fit_budget(model, stats, pcn.Budget(params, step=step)) == config
    pcn.make_plan(model, stats, config).apply_(model, stats)
    assert count(model).trainable <= limit


def test_a_larger_budget_buys_more_and_the_whole_budget_changes_nothing() -> None:
    sizes = []
    for params in (0.35, 0.6, 1.0):
        model = network()
        plan = pcn.compress_(model, [BATCH], params=params)
        sizes.append(count(model).trainable)
        assert params < 1.0 or not plan.transformed
    assert sizes == sorted(sizes)
    assert sizes[-1] == count(network()).trainable


class Words(nn.Module):
    """Most of it is a table that nothing is taken from."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(100, 32), nn.LayerNorm(32)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, words: Tensor) -> Tensor:
        return self.layers(self.norm(self.table(words)))


class Attending(nn.Module):
    """A good part of its operations are products of attention, which no rank changes."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.first, self.norm, self.last = (
            *(nn.Linear(16, 16), nn.Linear(16, 32)),
            *(nn.LayerNorm(32), nn.Linear(32, 16)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.scaled_dot_product_attention(self.key(x), x, x)
        return self.last(self.norm(self.first(x).relu()))


@pytest.mark.parametrize("drop_channels", [False, True])
@pytest.mark.parametrize("build", [ConvNet, Words])
def test_a_plan_says_what_becomes_of_the_whole_model(build: type[nn.Module], drop_channels: bool) -> None:
    torch.manual_seed(0)
    model = build()
    batch = torch.randint(100, (64, 5)) if build is Words else torch.randn(64, 3, 8, 8)
    before, stats = count(model).trainable, pcn.analyze(model, [batch])
    plan = pcn.make_plan(model, stats, pcn.Budget(0.8, step=2, drop_channels=drop_channels))
    plan.apply_(model, stats)
    assert plan.transformed
    after = count(model).trainable
    assert plan.whole == {"params": (before, after)}
    assert f"{before:,} -> {after:,} trainable in the whole model ({after / before:.1%})" in str(plan)
    assert pcn.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("drop_channels", [False, True])
def test_what_a_budget_limits_is_said_of_the_whole_model(drop_channels: bool) -> None:
    torch.manual_seed(0)
    model, batch = Attending(), torch.randn(64, 9, 16)

    def taken() -> dict[str, int]:
        return {"stored": count(model).total, "flops": round(flops_per_sample(model, batch))}

    before, stats = taken(), pcn.analyze(model, [batch])
    plan = pcn.make_plan(model, stats, pcn.Budget(stored=0.9, flops=0.8, step=1, drop_channels=drop_channels))
    plan.apply_(model, stats)
    after = taken()
    assert {unit: plan.whole[unit] for unit in before} == {unit: (before[unit], after[unit]) for unit in before}
    for unit, called in {"stored": "stored", "flops": "FLOPs per sample"}.items():
        assert f"{before[unit]:,} -> {after[unit]:,} {called} in the whole model" in str(plan)
    assert pcn.Plan.from_json(plan.to_json()) == plan


def test_a_score_is_the_share_of_a_linear_layers_output_variance() -> None:
    model = network().double()
    features = torch.randn(200, 3, 8, 8, dtype=torch.double)
    stats = pcn.analyze(model, [features])
    inputs = model[:7].eval()(features)
    outputs = inputs @ model[7].weight.T
    kept = (inputs - stats.mean("7")) @ stats.basis("7", 5) @ stats.basis("7", 5).T @ model[7].weight.T
    share = kept.var(0).sum() / outputs.var(0).sum()
    torch.testing.assert_close(pcn.Response()(model, stats, ["7"], ())["7"][5], share, rtol=1e-9, atol=0)


def test_layers_with_rules_and_excluded_ones_are_not_touched_by_the_budget() -> None:
    model = network()
    stats = pcn.analyze(model, [BATCH])
    config = pcn.PCNConfig(layers={"7": pcn.LayerRule(rank=12)}, exclude=["3"])
    plan = pcn.make_plan(model, stats, pcn.fit_budget(model, stats, pcn.Budget(0.5, step=4, config=config)))
    assert plan.layers["7"].rank == 12
    assert plan.layers["3"].rank is None
    plan.apply_(model, stats)
    assert count(model).trainable <= count(network()).trainable // 2


@pytest.mark.parametrize("params", [0, -1, 0.0, 1.5, True, "half"])
def test_an_impossible_budget_is_refused(params: object) -> None:
    with pytest.raises(pcn.ConfigError, match="params="):
        pcn.Budget(params)  # type: ignore[arg-type]


def test_a_budget_below_the_floor_says_by_how_much() -> None:
    with pytest.raises(pcn.ConfigError, match="parameters too small"):
        pcn.compress_(network(), [BATCH], params=100)


@pytest.mark.parametrize(
    "config",
    [
        pcn.PCNConfig(multiple_of=32),
        pcn.PCNConfig(layers={"7": pcn.LayerRule(rank=100)}),
        pcn.PCNConfig(layers={"*7": pcn.LayerRule(rank=128)}),
    ],
)
def test_rounding_and_rules_do_not_burst_the_budget(config: pcn.PCNConfig) -> None:
    model = network()
    limit = count(model).trainable * 95 // 100
    pcn.compress_(model, [BATCH], config, params=limit)
    assert count(model).trainable <= limit


def test_frozen_layers_neither_spend_nor_save() -> None:
    model = network()
    model[7].requires_grad_(False)
    limit = int(0.85 * count(model).trainable)
    plan = pcn.compress_(model, [BATCH], params=0.85)
    assert plan.layers["7"].rank is None
    assert plan.layers["7"].reason == "its weight is frozen"
    assert count(model).trainable <= limit


def test_a_budget_that_frozen_layers_put_out_of_reach_says_so_of_them() -> None:
    model = network()
    with pytest.raises(pcn.ConfigError) as unfrozen:
        pcn.compress_(model, [BATCH], params=0.01)
    assert "frozen" not in str(unfrozen.value)
    model.requires_grad_(False)
    model[9].requires_grad_(True)
    with pytest.raises(pcn.ConfigError, match=r"frozen weights \(0, 3, 7\) neither count nor change"):
        pcn.compress_(model, [BATCH], params=0.01)
    with pytest.raises(pcn.ConfigError, match=r"frozen weights \(0, 3, 7\) do not change"):
        pcn.compress_(model, [BATCH], flops=0.01)


def test_a_frozen_layer_that_is_excluded_says_so() -> None:
    model = network().requires_grad_(False)
    model[7].requires_grad_(True)
    plan = pcn.compress_(model, [BATCH], pcn.PCNConfig(exclude=["9"]), params=0.85)
    assert {name: layer.reason for name, layer in plan.layers.items() if layer.rank is None} == {
        "0": "its weight is frozen",
        "3": "its weight is frozen",
        "9": "excluded by '9'",
    }


@pytest.mark.parametrize(("config", "expected"), [
    (pcn.PCNConfig(), 1.0),
    (pcn.PCNConfig(precondition=0.0), 0.0),
    (pcn.PCNConfig(precondition=0.5), 0.5),
    (pcn.PCNConfig(order="kept_block"), 0.0),
])  # fmt: skip
def test_within_a_budget_directions_are_whitened_unless_something_else_is_asked_for(
    config: pcn.PCNConfig, expected: float
) -> None:
    model = ConvNet()
    stats = pcn.analyze(model, [BATCH])
    within = pcn.make_plan(model, stats, pcn.Budget(0.5, config=config, step=1))
    before_norms = {layer.precondition for layer in within.transformed if layer.norm_after is not None}
    assert before_norms == {expected}
    others = {layer.precondition for layer in within.transformed if layer.norm_after is None}
    assert others == {config.precondition or 0.0}  # drift along small directions would not be taken off again
    ranks = pcn.make_plan(model, stats, pcn.PCNConfig(rank=0.5))  # the paper's own coordinates
    assert {layer.precondition for layer in ranks.transformed} == {0.0}


class TimeFirst(nn.Module):
    """Reads (time, samples, features) and puts out one row for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.wide, self.out = nn.Linear(32, 32), nn.Linear(32, 256), nn.Linear(256, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.wide(torch.relu(self.embed(x)).mean(0))))


class Routed(nn.Module):
    """Some layers see as many rows as the data says."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.big = nn.Linear(32, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        chosen = x.sum(-1) > 0
        y = x.clone()
        y[chosen] = self.big(x[chosen])
        return y


def test_layers_with_fewer_rows_than_the_first_dimension_count_too() -> None:
    model, batch = TimeFirst(), torch.randn(100, 16, 32)
    stats = pcn.analyze(model, [batch])
    plan = pcn.make_plan(model, stats, pcn.Budget(flops=0.9, step=1))
    operations = {"embed": 2 * 16 * 32 * 32, "wide": 2 * 16 / 100 * 32 * 256, "out": 2 * 16 / 100 * 256 * 4}
    assert {name: layer.flops_before for name, layer in plan.layers.items()} == {
        name: round(number) for name, number in operations.items()
    }
    assert sum(layer.flops_after for layer in plan.layers.values()) <= 0.9 * sum(operations.values()) + 1
    assert pcn.Plan.from_json(plan.to_json()) == plan


def test_a_budget_of_operations_that_nobody_can_count_is_refused() -> None:
    model, batches = Routed(), [torch.randn(64, 32)]
    stats = pcn.analyze(model, batches)
    with pytest.raises(pcn.ConfigError, match=r"the operations of 'big' are not known.*give params="):
        pcn.make_plan(model, stats, pcn.Budget(flops=0.7))
    plan = pcn.make_plan(model, stats, pcn.Budget(flops=0.7, config=pcn.PCNConfig(exclude=("big",))))
    assert plan.layers["stem"].rank is not None
    assert plan.layers["big"].flops_before is None


@settings(max_examples=15)
@given(floor=st.floats(0.0, 1.0), step=st.integers(1, 16), params=st.floats(0.3, 1.0))
def test_every_layer_keeps_the_share_of_the_floor(floor: float, step: int, params: float) -> None:
    model = network()
    stats = pcn.analyze(model, [BATCH])
    budget = pcn.Budget(params, step=step, floor=floor)
    try:
        plan = pcn.make_plan(model, stats, budget)
    except pcn.ConfigError as error:
        assert "too small" in str(error)
        with pytest.raises(pcn.ConfigError, match="too small"):  # and at once
            pcn.Switch(model, None, budget)
        return
    pcn.Switch(model, None, budget)
    for layer in plan.transformed:
        assert layer.rank is not None
        assert layer.rank >= floor * layer.in_features / layer.groups or layer.in_features < step


def test_a_floor_that_stands_in_the_way_is_named() -> None:
    with pytest.raises(pcn.ConfigError, match=r"floor=0\.5 keeps as much of every layer's directions"):
        pcn.compress_(network(), [BATCH], pcn.Budget(0.3, floor=0.5))
    with pytest.raises(pcn.ConfigError, match="from 0 to 1"):
        pcn.Budget(0.3, floor=2)


def test_what_is_not_saved_does_not_count_as_saved_where_channels_go() -> None:
    class Scaled(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(channels, 1, 1), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    torch.manual_seed(0)
    middle = nn.Conv2d(32, 32, 3, padding=1)
    ends = nn.Conv2d(8, 32, 3, padding=1), nn.Linear(32, 10)
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = nn.Sequential(ends[0], Scaled(32), nn.ReLU(), middle, Scaled(32), nn.ReLU(), *pooled, ends[1])
    budget = pcn.Budget(stored=0.4, step=4, drop_channels=True, patterns=False)
    plan = pcn.compress_(model, [torch.randn(64, 8, 8, 8)], budget)
    assert any(name.endswith("scale") for name in plan.slices)
    assert plan.whole["stored"][1] == count(model).total
