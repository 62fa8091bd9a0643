"""A budget that no ranks could meet is refused before there are statistics, and no other one is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.costs.usage import Usage
from pcn.planner.measured import LayerUsage, Measured
from pcn.planner.question import Question
from pcn.planner.reachable import check_reachable
from pcn.running.example import Example
from planned_network import BATCH, network
from small import Branching, conv_net, images, vectors


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"two_sided": True},
        {"step": 3, "config": pcn.PCNConfig(skip_larger=False)},
        {"step": 1, "config": pcn.PCNConfig(layers={"7": pcn.LayerRule(rank=0.25), "3": pcn.LayerRule()})},
        {"step": 1, "config": pcn.PCNConfig(layers={"[37]": pcn.LayerRule(rank=1.0, output_rank=8)})},
    ],
)
@pytest.mark.parametrize("unit", ["params", "flops", "stored"])
@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_refused_at_once_is_what_the_planner_refuses(
    unit: str, options: dict[str, object], frozen: bool
) -> None:
    model = network()
    model[7].requires_grad_(not frozen)
    stats, graph = pcn.analyze(model, [BATCH]), pcn.trace(model, BATCH)
    found = set()
    for percent in range(1, 100, 14):
        budget = pcn.Budget(**{unit: percent / 100, **options})
        early = refusal(lambda budget=budget: check_reachable(model, budget, example=Example.of(BATCH)))
        assert early == refusal(lambda budget=budget: Question.of(model, stats, budget.settled(), graph, None))
        found.add(early is None)
    assert found == {True, False}


NARROW = st.tuples(st.integers(4, 24), st.sampled_from([1, 2, 4]), st.sampled_from([1, 3]), st.sampled_from([1, 2]))


@settings(max_examples=40, deadline=None)
@given(st.lists(NARROW, min_size=1, max_size=3), st.floats(0.05, 0.9), st.sampled_from([1, 4, 8]), st.floats(0, 1))
def test_strides_count_before_positions_are_known(
    layers: list[tuple[int, int, int, int]], share: float, step: int, floor: float
) -> None:
    """What is not refused when a switch is made is not refused at the switch either."""
    torch.manual_seed(0)
    modules, width = [], 3
    for filters, stride, kernel, groups in layers:
        several = groups if width % groups == 0 == filters % groups else 1
        modules += [nn.Conv2d(width, filters, kernel, stride, kernel // 2, groups=several), nn.ReLU()]
        width = filters
    model = nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    budget, x = pcn.Budget(params=share, step=step, floor=floor), torch.randn(16, 3, 16, 16)
    early = refusal(lambda: pcn.Switch(model, None, budget))
    late = refusal(lambda: pcn.make_plan(model, pcn.analyze(model, [x]), budget))
    assert (early is None) == (late is None)


def refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except pcn.ConfigError as error:
        return str(error)
    return None


def test_a_switch_with_an_example_refuses_a_budget_of_operations_when_it_is_made() -> None:
    budget = pcn.Budget(flops=0.01)
    pcn.Switch(network(), None, budget)
    for example in (BATCH, (BATCH, torch.zeros(32)), Example.of(BATCH)):
        with pytest.raises(
            pcn.ConfigError, match=r"is [\d,]+ FLOPs too small, .* the least would be [\d,]+ FLOPs \([\d.]+% of now"
        ):
            pcn.Switch(network(), None, budget, example=example)
        pcn.Switch(network(), None, pcn.Budget(flops=0.9), example=example)


def test_so_does_one_whose_model_cannot_be_traced() -> None:
    with pytest.raises(pcn.ConfigError, match="needs the model's graph, which could not be traced: give params; torch"):
        pcn.Switch(Branching(), None, pcn.Budget(flops=0.5), example=vectors(4))


def test_so_does_a_plan_of_it() -> None:
    model = Branching()
    stats = pcn.analyze(model, [vectors()])
    for ask in (pcn.make_plan, pcn.fit_budget):
        with pytest.raises(pcn.ConfigError, match=r"graph, which could not be traced: give params; torch.*: \w+: \w+"):
            ask(model, stats, pcn.Budget(flops=0.5))
    stats.example = None
    with pytest.raises(pcn.ConfigError, match=r"needs the model's graph: .* how the model is called is unknown"):
        pcn.make_plan(model, stats, pcn.Budget(flops=0.5))


def test_layers_with_rules_of_their_own_may_cost_nothing() -> None:
    model, example = conv_net(), Example.of(images(2))
    for unit in ("params", "flops"):
        budget = pcn.Budget(**{unit: 0.99}, step=64, config=pcn.PCNConfig(exclude=["conv*"]))
        with pytest.raises(pcn.ConfigError, match="too small"):
            check_reachable(model, budget, example=example)
        ruled = replace(budget.config, layers={"fc1": pcn.LayerRule(rank=1)})
        check_reachable(model, replace(budget, config=ruled), example=example)


def test_what_goes_with_outputs_that_a_rule_drops_is_not_counted() -> None:
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
    config = pcn.PCNConfig(layers={"0": pcn.LayerRule(rank=8, keep_outputs=16)})
    plan = pcn.compress_(model, [torch.randn(512, 20)], pcn.Budget(stored=4057, config=config))
    assert plan.whole["stored"][1] == 4057  # the basis of '2' has 16 rows, and not 256


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({}, {"step": 1}),
        ({"step": 1, "config": pcn.PCNConfig(multiple_of=8)}, {"config": pcn.PCNConfig()}),
        ({"step": 3, "config": pcn.PCNConfig(multiple_of=4)}, {"step": 1, "config": pcn.PCNConfig()}),
        ({"two_sided": True}, {"step": 1}),
    ],
)
@pytest.mark.parametrize("unit", ["params", "flops"])
def test_where_steps_of_rank_are_why_the_refusal_says_how_low_smaller_ones_go(
    unit: str, options: dict[str, Any], instead: dict[str, Any]
) -> None:
    model, example = conv_net(), Example.of(images(2))
    budget = pcn.Budget(**{unit: 1}, **options)
    said = refusal(lambda: check_reachable(model, budget, example=example))
    asked = "and ".join(f"{'Budget' if name == 'step' else 'PCNConfig'}\\(\\w+=1\\) " for name in instead)
    pattern = (
        rf"; ranks go in steps of {budget.rank_step}, and nothing can be cut of layers of no more inputs \(conv1.*\): "
    )
    found = re.search(rf"{pattern}with {asked}it would be ([\d,]+) \w+ \([\d.]+% of now\)$", said)
    assert found, said
    least = int(found[1].replace(",", ""))
    finer = replace(budget, **instead)
    check_reachable(model, replace(finer, **{unit: least}), example=example)
    said = refusal(lambda: check_reachable(model, replace(finer, **{unit: least - 1}), example=example))
    assert said is not None
    assert "steps" not in said


def test_a_layer_with_rules_is_not_among_those_that_steps_keep_whole() -> None:
    config = pcn.PCNConfig(exclude=["fc*"], layers={"conv1": pcn.LayerRule(rank=2)})
    said = refusal(lambda: check_reachable(conv_net(), pcn.Budget(params=1, config=config)))
    assert said is not None
    assert "of no more inputs (conv2, conv3): with" in said


def test_time_and_memory_that_nobody_measured_are_not_foretold() -> None:
    model = conv_net()
    measured = pcn.measure_costs(model, images(4), pcn.Budget(memory_mib=0.5), times=False)
    said = refusal(lambda: check_reachable(model, pcn.Budget(memory_mib="0.001 MiB"), measured))
    assert said is not None
    assert said.endswith(": Budget(step=1) may get lower")


def test_a_layer_with_as_few_outputs_as_a_step_trains_them_all() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 64))
    config = pcn.PCNConfig(skip_larger=False)
    least = (8 * 8 + 8) + (8 * 8 + 64)  # 8 outputs in 8 directions, and 8 of 64
    stats = pcn.analyze(model, [torch.randn(200, 64)])
    plan = pcn.make_plan(model, stats, pcn.Budget(params=least, two_sided=True, config=config))
    assert plan.trainable_after == least
    with pytest.raises(pcn.ConfigError, match="is 1 parameters too small"):
        check_reachable(model, pcn.Budget(params=least - 1, two_sided=True, config=config))


def test_a_refusal_says_that_channels_go_only_from_ranks_that_fit_and_what_takes_less() -> None:
    widths = ((64, 256), (256, 256), (256, 10))
    first, second, last = (torch.nn.Linear(*sizes) for sizes in widths)
    model = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), last)
    stats, least = pcn.analyze(model, [torch.randn(300, 64)]), 8 * (256 + 256 + 10) + 256 + 256 + 10
    budget = pcn.Budget(params=least - 1, drop_channels=True)
    assert pcn.make_plan(model, stats, replace(budget, params=least)).trainable_after <= least
    said = refusal(lambda: check_reachable(model, budget))
    assert said is not None
    assert said == refusal(lambda: Question.of(model, stats, budget, pcn.trace(model, torch.randn(2, 64)), None))
    assert f"the least would be {least:,} parameters" in said
    assert "; all channels are kept in this, as drop_channels=True" in said
    assert "channels" not in (refusal(lambda: check_reachable(model, replace(budget, drop_channels=False))) or "")
    named = pcn.PCNConfig(rank=8, keep_outputs=0.5, skip_larger=False)
    assert pcn.make_plan(model, stats, named).trainable_after < least


def test_time_that_no_rank_saves_is_said_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    for clock in ("measuring.model_step_ns", "trials.step_ns"):  # the same whatever the rank
        monkeypatch.setattr(f"pcn.planner.{clock}", lambda *arguments, **options: 1000)
    model = conv_net()
    budget = pcn.Budget(step_ms=0.5)
    measured = pcn.measure_costs(model, images(4), budget)
    said = refusal(lambda: check_reachable(model, budget, measured))
    assert said is not None
    assert "no rank on offer takes less than its layer does now: the least is" in said
    assert "step" not in said.split("the least is")[1]


def test_memory_that_only_finer_steps_would_save_says_so() -> None:
    model, x = nn.Sequential(nn.Linear(8, 512), nn.Tanh()), torch.randn(64, 8)
    with pytest.raises(pcn.ConfigError, match=r"no rank on offer .*: Budget\(step=1\) may get lower"):
        pcn.compress_(model, [x], memory_mib=0.9)
    plan = pcn.compress_(model, [x], pcn.Budget(memory_mib=0.9, step=1))
    assert plan.usage is not None
    assert plan.usage.after.memory_bytes <= 0.9 * plan.usage.before.memory_bytes


def dearer(model: nn.Module, batch: torch.Tensor) -> Measured:
    """Measurements in which every form takes twice the memory, and the time, of its layer."""
    measured = pcn.measure_costs(model, batch, times=False)
    layers = {
        name: LayerUsage(Usage(1000, 1000), dict.fromkeys(layer.tried, Usage(2000, 2000)))
        for name, layer in measured.layers.items()
    }
    return replace(measured, rest=Usage(1000, 1000), layers=layers)


@pytest.mark.parametrize("limit", [{"memory_mib": 100_000}, {"step_ms": 100_000}, {"flops": 1.0}])
@pytest.mark.parametrize("step", [1, 8])
def test_a_limit_that_is_far_away_puts_no_other_out_of_reach(limit: dict[str, Any], step: int) -> None:
    model = network()
    stats, measured = pcn.analyze(model, [BATCH]), dearer(model, BATCH)
    alone = pcn.Budget(params=0.6, step=step)
    both = replace(alone, **limit)
    pcn.Switch(model, None, both, measured=measured, example=BATCH)
    plan = pcn.make_plan(model, stats, both, measured=measured)
    assert plan.trainable_after <= 0.6 * sum(parameter.numel() for parameter in model.parameters())
    ranks = {name: layer.rank for name, layer in plan.layers.items()}
    found = pcn.make_plan(model, stats, alone)
    assert ranks == {name: layer.rank for name, layer in found.layers.items()}


def test_no_layer_gets_dearer_where_others_can_save_enough() -> None:
    model = network()
    stats, measured = pcn.analyze(model, [BATCH]), dearer(model, BATCH)
    calm = LayerUsage(Usage(1000, 1000), dict.fromkeys(measured.layers["7"].tried, Usage(500, 500)))
    measured = replace(measured, layers={**measured.layers, "7": calm})
    plan = pcn.make_plan(model, stats, pcn.Budget(params=0.7, step_ms=100_000), measured=measured)
    assert [layer.name for layer in plan.transformed] == ["7"]
    plan = pcn.make_plan(model, stats, pcn.Budget(params=0.35, step_ms=100_000), measured=measured)
    assert len(plan.transformed) > 1


def test_limits_that_cannot_be_met_together_are_refused_when_a_switch_is_made() -> None:
    model = network()
    stats, measured = pcn.analyze(model, [BATCH]), dearer(model, BATCH)
    budget = pcn.Budget(params=0.6, step_ms=1.0)  # no rank saves parameters and takes no longer
    said = refusal(lambda: pcn.Switch(model, None, budget, measured=measured))
    assert said is not None
    # Both are amounts of the whole model, which can be given in the place of the limits.
    assert re.fullmatch(
        r"no ranks were found that meet all limits of the budget together, 7,868 parameters and 0.005 ms: the closest "
        r"take [\d,]+ parameters \([\d.]+% of now\) and [\d.]+ ms \([\d.]+% of now\)",
        said,
    )
    assert said == refusal(lambda: Question.of(model, stats, budget, pcn.trace(model, BATCH), measured))


def test_limits_that_only_a_mixture_meets_are_met() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(12)))
    stats = pcn.analyze(model, [torch.randn(200, 64)])
    # Each layer trains a quarter for a tenth more time: half of the layers may, and all save too little time.
    layers = {
        name: LayerUsage(Usage(1000), {(16, None): Usage(1100), (64, None): Usage(2000)}) for name in stats.layers
    }
    budget = pcn.Budget(params=0.65, step_ms="0.0127 ms", step=16)
    plan = pcn.make_plan(model, stats, budget, measured=Measured(Usage(), layers))
    assert plan.usage is not None
    assert plan.usage.after.time_ns <= 12_700
    assert plan.trainable_after <= 0.65 * plan.trainable_before


def test_layers_with_too_many_outputs_to_choose_from_are_not_foretold_to() -> None:
    model = nn.Sequential(nn.Linear(64, 1032), nn.ReLU(), nn.Linear(1032, 64))
    stats, graph = pcn.analyze(model, [torch.randn(100, 64)]), pcn.trace(model, torch.randn(2, 64))
    budget = pcn.Budget(params=1, two_sided=True)
    assert refusal(lambda: check_reachable(model, budget)) == refusal(
        lambda: Question.of(model, stats, budget, graph, None)
    )


class WithAuxiliaryHead(nn.Module):
    """A network most of whose weights run in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.aux, self.head = nn.Linear(16, 32), nn.Linear(32, 300), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        return self.aux(x).sum(1, keepdim=True) + self.head(x) if self.training else self.head(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.cell, self.last = nn.Linear(16, 32), nn.LSTM(32, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cell(self.first(x).relu())[0])


def test_what_a_budget_takes_nothing_from_is_named() -> None:
    x = torch.randn(40, 16)
    with pytest.raises(pcn.ConfigError, match=r"nothing from 'cell' \(25,088 parameters: LSTM is not a Linear"):
        pcn.Switch(Recurrent(), None, params=0.5)
    switch = pcn.Switch(WithAuxiliaryHead(), None, params=0.5)
    with pytest.raises(pcn.ConfigError, match=r"nothing from 'aux' \(9,900 parameters: never called"):
        switch.after_epoch(1, [x])
    model = network()
    whole = pcn.PCNConfig(layers={"7": pcn.LayerRule(rank=1.0)})
    with pytest.raises(pcn.ConfigError, match=r"nothing from '7' \(8,256 parameters: a rule says what it keeps\)"):
        pcn.compress_(model, [BATCH], pcn.Budget(params=0.3, config=whole))
    with pytest.raises(pcn.ConfigError, match=r"nothing from '7' \(8,256 parameters: excluded by '7'\)"):
        pcn.compress_(network(), [BATCH], pcn.Budget(memory_mib=0.2, config=pcn.PCNConfig(exclude="7")))
    with pytest.raises(pcn.ConfigError, match=r"; 0, 3: every tap is trained, as it read little") as refused:
        pcn.compress_(network(), [torch.zeros_like(BATCH)], pcn.Budget(params=0.03, step=1))
    assert "it takes nothing from" not in str(refused.value)


class Reading(nn.Module):
    """Most of what it stores is a table, and much of what it computes is attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.last = nn.Embedding(500, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        return self.last(nn.functional.scaled_dot_product_attention(self.first(x), x, x))


def test_what_is_named_is_what_the_limit_is_about() -> None:
    words = [torch.randint(500, (32, 64))]
    with pytest.raises(pcn.ConfigError, match=r"from what is in no layer that could change \(524,288 FLOPs\)") as said:
        pcn.compress_(Reading(), words, flops=0.1)
    assert "table" not in str(said.value)
    frozen = Reading()
    frozen.table.requires_grad_(False)
    with pytest.raises(pcn.ConfigError, match=r"nothing from 'table' \(16,000 stored numbers: Embedding is not"):
        pcn.compress_(frozen, words, stored=0.3)


def test_of_a_layer_with_a_rule_what_the_rule_leaves_is_named() -> None:
    model, config = wide_then_narrow(), pcn.PCNConfig(layers={"0": pcn.LayerRule(rank=40)})
    with pytest.raises(pcn.ConfigError, match=r"nothing from '0' \(2,624 parameters: a rule says what it keeps\)"):
        pcn.compress_(model, [torch.randn(900, 768)], pcn.Budget(params=0.05, config=config))


def test_a_layer_of_which_a_floor_leaves_no_smaller_form_is_named() -> None:
    why = r"nothing from '0' \(49,216 parameters: no form of it on offer is smaller .*skip_larger=False\) has others\)"
    budget = pcn.Budget(params=0.3, floor=0.25)
    for refused in (
        lambda: pcn.Switch(wide_then_narrow(), None, budget),
        lambda: check_reachable(wide_then_narrow(), budget),
    ):
        with pytest.raises(pcn.ConfigError, match=why):
            refused()
    pcn.compress_(wide_then_narrow(), [torch.randn(900, 768)], replace(budget, config=pcn.PCNConfig(skip_larger=False)))


@pytest.mark.parametrize("limit", ["stored", "flops"])
def test_a_limit_that_what_is_kept_of_the_weights_puts_out_of_reach_is_met_without_it(limit: str) -> None:
    model, config = network(), pcn.PCNConfig(keep_dropped=True)
    budget = pcn.Budget(**{limit: 0.8}, config=config)
    early = refusal(lambda: check_reachable(model, budget, example=Example.of(BATCH)))
    assert early is not None
    assert re.search(
        r"\(100.0% of now\); PCNConfig\(keep_dropped=True\) keeps .*: without it, it would be [\d,]+", early
    )
    stats, graph = pcn.analyze(model, [BATCH]), pcn.trace(model, BATCH)
    assert early == refusal(lambda: Question.of(model, stats, budget.settled(), graph, None))
    assert "keep_dropped" not in str(refusal(lambda: check_reachable(model, pcn.Budget(params=0.001, config=config))))
    pcn.compress_(model, [BATCH], replace(budget, config=pcn.PCNConfig()))


def test_memory_that_what_is_kept_of_the_weights_takes_is_said_to() -> None:
    budget = pcn.Budget(memory_mib=0.2, config=pcn.PCNConfig(keep_dropped=True))
    with pytest.raises(pcn.ConfigError, match=r"PCNConfig\(keep_dropped=True\) keeps .*: without it, it may get lower"):
        pcn.compress_(wide_then_narrow(), [torch.randn(900, 768)], budget)


def test_a_parametrised_layer_is_named_by_itself_with_what_to_do() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)))
    with pytest.raises(pcn.ConfigError, match=r"nothing from '2' \(4,2\d\d parameters: .*remove_parametrizations"):
        pcn.compress_(model, [torch.randn(100, 64)], params=0.1)
    assert pcn.make_plan(model, pcn.analyze(model, [torch.randn(100, 64)])).left_alone.keys() == {"2"}


def test_a_model_that_is_parametrised_itself_is_named_so() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.before = nn.Parameter(torch.randn(64, 64)), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.before(x) @ self.weight

    model = nn.utils.parametrizations.weight_norm(Product())
    with pytest.raises(pcn.ConfigError, match=r"nothing from the model itself \(4,160 parameters: .*parametrised"):
        pcn.compress_(model, [torch.randn(100, 64)], params=0.3)


@pytest.mark.parametrize("limit", ["stored", "flops"])
@pytest.mark.parametrize("skip_larger", [True, False])
def test_frozen_layers_are_named_as_such(limit: str, skip_larger: bool) -> None:
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model[2].requires_grad_(False)
    budget = pcn.Budget(**{limit: 0.3}, config=pcn.PCNConfig(skip_larger=skip_larger))
    with pytest.raises(pcn.ConfigError, match=r"nothing from '2' \([^:)]*: its weight is frozen\)"):
        pcn.compress_(model, [torch.randn(200, 24)], budget)


def test_buffers_that_are_not_saved_are_no_stored_numbers() -> None:
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16))
    model.register_buffer("mask", torch.ones(64, 64, dtype=torch.bool))
    model.register_buffer("scratch", torch.ones(64, 64), persistent=False)
    with pytest.raises(pcn.ConfigError, match="too small") as said:
        pcn.compress_(model, [torch.randn(200, 64)], stored=200)
    assert "4,096" not in str(said.value)


def wide_then_narrow() -> nn.Sequential:
    return nn.Sequential(nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Tied(nn.Module):
    """A language model whose head is its embedding, which is most of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(64, 16), nn.Linear(16, 16), nn.Linear(16, 64, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(x)).relu())


def test_what_a_budget_takes_nothing_from_counts_tied_weights_once() -> None:
    with pytest.raises(pcn.ConfigError, match=r"nothing from 'embedding' \(1,024 parameters: Emb") as refused:
        pcn.Switch(Tied(), None, params=0.3)
    assert str(refused.value).count("1,024 parameters") == 1


class WithUnused(nn.Module):
    """Two layers, and one that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.aux = nn.Linear(24, 96), nn.Linear(96, 64), nn.Linear(96, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(x)))


@pytest.mark.parametrize("unit", ["params", "stored"])
def test_the_least_that_a_plan_could_have_leaves_layers_whole_that_were_never_called(unit: str) -> None:
    model = WithUnused()
    stats = pcn.analyze(model, [vectors(width=24)])
    with pytest.raises(pcn.ConfigError, match=r"'aux' .* never called") as refused:
        pcn.make_plan(model, stats, pcn.Budget(**{unit: 0.05}))
    least, finest = (
        int(found.replace(",", "")) for found in re.findall(r"would be ([\d,]+) (?:para|stored)", str(refused.value))
    )
    for budget in (pcn.Budget(**{unit: least}), pcn.Budget(**{unit: finest}, step=1)):
        assert pcn.make_plan(model, stats, budget).whole[unit][1] <= budget.limit(unit, 0)
        assert pcn.fit_budget(model, stats, budget)
