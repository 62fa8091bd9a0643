"""Channels chosen together with ranks: within limits, never for less worth, idle ones first, coupled ones as one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.config import ORDERS
from pcn.costs.count import count, flops_per_sample
from pcn.planner.channels import Answer, cheapest, with_channels
from pcn.planner.items import Items
from pcn.planner.question import Question
from pcn.planner.reading import Reading
from pcn.planner.staying import NO_USE, RANKS_ALONE, WORTH_MORE, why_outputs_stay
from pcn.plans.prospect import prospect
from pcn.report.toml import same_run
from pcn.training import Settings
from pcn.training.requests import requested
from random_models.choices import Choices
from random_models.properties import measured, run
from small import Branching, ConvNet, HardCoded, Mlp, Residual, vectors


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(width, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.second = nn.Conv2d(inner, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


def residual_cnn() -> nn.Module:
    body = [nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), Block(12, 16), Block(12, 10)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5))


def depthwise_cnn() -> nn.Module:
    body = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*body, nn.Conv2d(16, 12, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 16, 5))


IMAGES = (3, 8, 8)
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (Mlp, (12,)),
    "dense residual": (Residual, (12,)),
    "convolutional": (ConvNet, IMAGES),
    "residual": (residual_cnn, IMAGES),
    "depthwise": (depthwise_cnn, IMAGES),
}


class Case(NamedTuple):
    model: nn.Module
    x: Tensor
    stats: pcn.Statistics
    graph: pcn.ChannelGraph


def looked_at(model: nn.Module, x: Tensor) -> Case:
    stats = pcn.analyze(model, [x])
    return Case(model, x, stats, pcn.trace(model, stats.example))


@cache
def case(kind: str, seed: int) -> Case:
    torch.manual_seed(seed)
    make, shape = KINDS[kind]
    mixing = torch.randn(shape[0], shape[0]) * torch.logspace(0, -1, shape[0])
    return looked_at(make().eval(), torch.tensordot(torch.randn(64, *shape), mixing, ([1], [0])).movedim(-1, 1) + 0.3)


def answers(case: Case, budget: pcn.Budget) -> tuple[Question, Answer, Answer]:
    """The question, the answer of ranks alone, and that of ranks and channels."""
    question = Question.of(case.model, case.stats, budget.settled(), case.graph, None)
    known = question.known(case.stats, ())
    both = with_channels(question, known, case.stats, case.graph, case.stats.example)
    return question, Answer(question.answer(known)), both


def budgets() -> st.SearchStrategy[pcn.Budget]:
    configs = st.builds(pcn.PCNConfig, order=st.sampled_from(ORDERS), skip_larger=st.booleans())
    flops = st.one_of(st.none(), st.floats(0.7, 1.5).map(lambda share: min(share, 1.0)))
    chosen = {"params": st.floats(0.25, 0.9), "flops": flops, "step": st.integers(1, 5), "two_sided": st.booleans()}
    return st.builds(pcn.Budget, config=configs, drop_channels=st.just(True), **chosen)


CASES = st.builds(case, st.sampled_from(sorted(KINDS)), st.integers(0, 1))


@settings(max_examples=15, deadline=None)
@given(CASES, budgets())
def test_the_plan_keeps_every_limit_and_every_promise(case: Case, budget: pcn.Budget) -> None:
    try:
        plan = pcn.make_plan(case.model, case.stats, budget, graph=case.graph)
    except pcn.ConfigError as error:
        assert "too small" in str(error) or "all limits" in str(error)
        return
    assert pcn.make_plan(case.model, case.stats, budget, graph=case.graph) == plan
    assert pcn.Plan.from_json(plan.to_json()) == plan
    small = copy.deepcopy(case.model)
    plan.apply_(small, case.stats)
    now, after = count(case.model).trainable, count(small).trainable
    assert after <= budget.limit("params", now)
    assert after == prospect(case.model, plan, None).after.trainable
    if budget.flops is not None:
        flops = sum(layer.flops_after for layer in plan.layers.values())
        assert flops <= budget.flops * flops_per_sample(case.model, case.x)
    small.train()(case.x).square().mean().backward()
    assert all(parameter.grad is not None for parameter in small.parameters() if parameter.requires_grad)
    for layer in plan.transformed:
        assert layer.rank is None or layer.rank <= layer.kept_inputs // layer.groups
        assert layer.rank is not None or layer.kept_inputs == layer.in_features
        assert not budget.config.skip_larger or layer.stored_after < layer.trainable_before


@settings(max_examples=15, deadline=None)
@given(CASES, budgets())
def test_channels_go_for_more_worth_and_their_cost_is_counted_exactly(case: Case, budget: pcn.Budget) -> None:
    try:
        question, alone, both = answers(case, budget)
    except pcn.ConfigError:
        return
    assert both.worth >= alone.worth
    if both.dropped is None:
        assert both.served == alone.served
        return
    assert both.worth > alone.worth
    cut = question.without(case.graph, both.dropped)
    spent = sum(each.option.costs["params"] for each in both.served.values()) + cut.room.others["params"]
    plan = pcn.make_plan(case.model, case.stats, budget, graph=case.graph)
    assert spent == prospect(case.model, plan, None).after.trainable


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), budgets())
def test_models_of_all_sorts_run_and_train_what_the_plan_says(random: Random, budget: pcn.Budget) -> None:
    """Shuffles, gates, concatenations, shared layers, and numbers of channels in the model's code."""
    made, stats = measured(Choices(random.randrange))
    before, shapes = count(made.model).trainable, [tensor.shape for tensor in run(made.model, made)]
    try:
        plan = pcn.make_plan(made.model, stats, replace(budget, flops=None))
    except pcn.ConfigError as error:
        assert "too small" in str(error)
        return
    promised = prospect(made.model, plan, None).after.trainable
    plan.apply_(made.model, stats)
    assert [tensor.shape for tensor in run(made.model, made)] == shapes
    assert promised == count(made.model).trainable <= budget.limit("params", before)
    event("dropped" if plan.slices else "ranks alone")


def test_the_front_door_and_other_worths_take_it_too() -> None:
    for worth in (pcn.Response(), pcn.Taylor()):
        model, x, *_ = case("residual", 0)
        model = copy.deepcopy(model)
        budget = pcn.Budget(0.4, step=2, drop_channels=True, worth=worth)
        plan = pcn.compress_(model, [x], budget)
        assert plan.slices
        assert count(model).trainable <= 0.4 * count(case("residual", 0).model).trainable


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_channels_go_where_ranks_are_dear_and_the_plan_says_what_they_hold(kind: str) -> None:
    model, _, stats, graph = case(kind, 0)
    assert not pcn.make_plan(model, stats, pcn.Budget(0.35, step=2), graph=graph).slices
    budget = pcn.Budget(0.35, step=2, worth=pcn.Response(), drop_channels=True)
    plan = pcn.make_plan(model, stats, budget, graph=graph)
    losers = [layer for layer in plan.layers.values() if layer.kept_outputs < layer.out_features]
    assert losers
    for layer in losers:
        gone = layer.out_features - layer.kept_outputs
        assert f"{gone} of {layer.out_features} outputs go, with " in (layer.note or "")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_with_room_for_everything_nothing_goes(kind: str) -> None:
    plan = pcn.make_plan(case(kind, 0).model, case(kind, 0).stats, pcn.Budget(1.0, step=2, drop_channels=True))
    assert not plan.slices
    assert not plan.transformed
    said = {layer.output_reason for layer in plan.layers.values()}
    assert NO_USE in said
    assert "its channels are visible in the model's output" in said


@settings(max_examples=20, deadline=None)
@given(CASES, budgets())
def test_a_layer_that_loses_no_outputs_says_why(case: Case, budget: pcn.Budget) -> None:
    try:
        plan = pcn.make_plan(case.model, case.stats, budget, graph=case.graph)
    except pcn.ConfigError:
        return
    for layer in plan.layers.values():
        assert layer.kept_outputs < layer.out_features or layer.output_reason
        assert "None" not in (layer.output_reason or "")


def test_why_no_channel_goes_is_in_the_table() -> None:
    model, _, stats, graph = case("dense", 0)
    plans = {
        (share, drops): pcn.make_plan(model, stats, pcn.Budget(share, step=2, drop_channels=drops), graph=graph)
        for share in (0.4, 0.9)
        for drops in (True, False)
    }
    assert not any(plan.slices for plan in plans.values())
    assert f"fc2: outputs stay: {WORTH_MORE}" in str(plans[0.9, True])
    assert f"outputs stay: {RANKS_ALONE}" in str(plans[0.4, True])
    assert "fc3: outputs stay: its channels are visible in the model's output" in str(plans[0.4, True])
    assert "outputs" not in str(plans[0.4, False])


def test_steps_that_let_no_channel_go_are_named() -> None:
    *_, stats, graph = case("residual", 0)
    question, alone, both = answers(case("residual", 0), pcn.Budget(0.9, step=2, drop_channels=True))
    assert both.dropped is not None
    said = why_outputs_stay(Items(question, alone.served, stats, graph), None, {}, tried=False)
    assert said["3.first"] == "none could go in steps of 2 that are worth less than ranks"


@pytest.mark.parametrize("params", [0.45, 0.6])
@pytest.mark.parametrize("step", [2, 4])
@pytest.mark.parametrize("kind", ["dense residual", "residual"])
def test_channels_that_meet_in_a_sum_go_as_one(kind: str, step: int, params: float) -> None:
    """Four channels of the stream hold nothing: they go from every layer that puts them out."""
    streams = {"dense residual": ["stem", "block"], "residual": ["0", "3.second", "4.second"]}[kind]
    model, x, *_ = case(kind, 0)
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name in streams:
            model.get_submodule(name).weight[4:8] = 0
            model.get_submodule(name).bias[4:8] = 0
    config = pcn.PCNConfig(skip_larger=False)
    budget = pcn.Budget(params, step=step, drop_channels=True, config=config)
    plan = pcn.make_plan(model, pcn.analyze(model, [x]), budget)
    kept = {plan.kept(f"{name}.weight", 0) for name in streams}
    assert len(kept) == 1
    assert None not in kept
    assert not set(range(4, 8)) & set(*kept)
    for layer in plan.layers.values():
        assert layer.kept_outputs == layer.out_features or layer.kept_outputs % step == 0


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, 15), min_size=1, max_size=6), st.sampled_from([1, 2]), st.sampled_from(ORDERS))
def test_channels_that_nobody_gives_weight_go_first(idle: set[int], step: int, order: pcn.config.Order) -> None:
    """Channel i of ``0`` is input i alone, and these are uncorrelated: direction i of what ``1`` reads is channel i."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(16))
        model[1].weight[:, sorted(idle)] = 0
    rows = torch.randn(100, 16, dtype=torch.double)
    x = torch.linalg.qr(rows - rows.mean(0))[0] * torch.linspace(3, 1, 16)
    stats = pcn.analyze(model, [x])
    options = {"step": step, "config": pcn.PCNConfig(order=order, skip_larger=False)}
    rank = pcn.make_plan(model, stats, pcn.Budget(0.5, **options)).layers["1"].rank
    unread = idle | set(range(rank, 16))
    kept = pcn.make_plan(model, stats, pcn.Budget(0.5, drop_channels=True, **options)).kept("0.weight", 0)
    assert kept is not None
    gone = set(range(16)) - set(kept)
    assert gone <= unread or unread <= gone


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 99), st.integers(1, 8), st.sets(st.integers(0, 7), min_size=1, max_size=5))
def test_what_is_left_of_a_response_is_what_the_layer_loses(seed: int, rank: int, gone: set[int]) -> None:
    """Counted as its mean, an input that goes takes ``W U Uᵀ`` of itself; counted as 0, its mean as well."""
    torch.manual_seed(seed)
    layer, x = nn.Sequential(nn.Linear(8, 5)).double(), vectors(60, 8).double()
    stats = pcn.analyze(layer, [x])
    mask = torch.zeros(8, dtype=torch.bool)
    mask[sorted(gone)] = True
    basis = stats.basis("0", rank)
    through = layer[0].weight.detach() @ basis @ basis.T
    centred = x - x.mean(0)
    response = (centred @ through.T).square().sum() / (len(x) - 1)
    for order, extra in (("project_first", 0 * x.mean(0)), ("truncate_first", x.mean(0))):
        config = pcn.PCNConfig(rank=1.0, order=order, skip_larger=False)
        reading = Reading.of(layer, stats, pcn.make_plan(layer, stats, config).layers["0"])
        lost = ((centred * mask) @ through.T).square().sum() / (len(x) - 1)
        lost = lost + (through @ (mask * extra)).square().sum()
        expected = (1 - lost / response).clamp(0, 1)
        torch.testing.assert_close(reading.left(mask)[rank], expected, rtol=1e-6, atol=1e-9)
        if len(gone) == 1:
            torch.testing.assert_close(reading.carried(rank)[mask].sum(), lost / response, rtol=1e-6, atol=1e-9)


def test_what_the_models_code_does_not_let_go_stays_and_the_plan_says_why() -> None:
    torch.manual_seed(0)
    model, x = HardCoded(), vectors()
    stats = pcn.analyze(model, [x])
    config = pcn.PCNConfig(skip_larger=False)
    plan = pcn.make_plan(model, stats, pcn.Budget(0.4, step=2, drop_channels=True, config=config))
    assert "is written into the model's code" in (plan.layers["fc1"].output_reason or "")
    assert plan.layers["fc1"].kept_outputs == 16
    plan.apply_(model, stats)
    model(x)


def test_without_a_graph_ranks_alone_are_chosen() -> None:
    torch.manual_seed(0)
    model = Branching()
    stats = pcn.analyze(model, [vectors()])
    plan, alone = (pcn.make_plan(model, stats, pcn.Budget(0.7, drop_channels=drop)) for drop in (True, False))
    assert [layer.rank for layer in plan.layers.values()] == [layer.rank for layer in alone.layers.values()]
    assert not plan.slices
    assert "outputs stay: torch.export cannot follow Branching" in str(plan)


def test_layers_with_rules_and_frozen_ones_keep_their_channels() -> None:
    model, _, stats, graph = case("residual", 0)
    model = copy.deepcopy(model)
    model[3].first.requires_grad_(False)
    config = pcn.PCNConfig(layers={"4.first": pcn.LayerRule(rank=4)})
    plan = pcn.make_plan(model, stats, pcn.Budget(0.5, step=2, drop_channels=True, config=config), graph=graph)
    assert not plan.layers["3.first"].changed
    assert plan.layers["4.first"].rank == 4
    assert plan.layers["3.first"].output_reason == "its weight is frozen"
    assert plan.layers["4.first"].output_reason == "a rule says what is kept there"
    assert "reads it, and its weight is frozen" in (plan.layers["0"].output_reason or "")
    assert (plan.layers["4.first"].kept_inputs, plan.layers["4.first"].kept_outputs) == (12, 10)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_some_channels_of_every_layer_always_stay(kind: str) -> None:
    question, alone, _ = answers(case(kind, 0), pcn.Budget(0.4, step=1, drop_channels=True))
    items = Items(question, alone.served, case(kind, 0).stats, case(kind, 0).graph)
    for share in (0.5, 1.0):
        left = ~cheapest(items, share)
        assert all(left[sorted(family)].any() for family in items.wiring.families)


def test_what_cannot_be_asked_for_is_refused() -> None:
    model, _, stats, _ = case("dense", 0)
    with pytest.raises(pcn.ConfigError, match="without params, flops or stored"):
        pcn.Budget(memory_mib=0.5, drop_channels=True)
    with pytest.raises(pcn.ConfigError, match=r"layers\['fc1'\] says what to keep"):
        pcn.Budget(0.5, drop_channels=True, config=pcn.PCNConfig(layers={"fc1": pcn.LayerRule(keep_outputs=8)}))
    with pytest.raises(pcn.ConfigError, match="make_plan"):
        pcn.fit_budget(model, stats, pcn.Budget(0.5, drop_channels=True))
    with pytest.raises(pcn.ConfigError, match="drop_channels without a budget"):
        Settings(drop_channels=True)
    with pytest.raises(pcn.ConfigError, match="cannot fade"):
        Settings(params=0.5, drop_channels=True, fade_epochs=1.0)


def test_a_run_asks_for_it_by_its_settings() -> None:
    wish = Settings(params=0.5, drop_channels=True)
    assert requested(wish).drop_channels
    assert "drop_channels" not in same_run(wish)


@pytest.mark.parametrize(("samples", "limit"), [(24, {"stored": 0.5}), (48, {"flops": 0.4}), (400, {"flops": 0.4})])
def test_channels_do_not_go_for_what_stays_unused(samples: int, limit: dict[str, float]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    batch = torch.randn(samples, 32) * torch.linspace(1, 0.01, 32)
    plan = pcn.make_plan(model, pcn.analyze(model, [batch]), pcn.Budget(**limit, drop_channels=True))
    (unit, share), *_ = limit.items()
    now, after = plan.whole[unit]
    assert plan.layers["2"].kept_outputs < 256
    assert 0.97 * share * now < after <= share * now
    assert plan.unspent is None
