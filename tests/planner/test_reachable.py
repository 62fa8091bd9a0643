"""A budget that no ranks could meet is refused before there are statistics, and no other one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import pcn
from pcn.planner.reachable import check_reachable
from pcn.running.example import Example
from planned_network import BATCH, network
from small import Branching, conv_net, images, vectors


@pytest.mark.parametrize("options", [{}, {"two_sided": True}, {"step": 3, "config": pcn.PCNConfig(skip_larger=False)}])
@pytest.mark.parametrize("unit", ["params", "flops"])
@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_refused_at_once_is_what_the_planner_refuses(
    unit: str, options: dict[str, object], frozen: bool
) -> None:
    model = network()
    model[7].requires_grad_(not frozen)
    stats = pcn.analyze(model, [BATCH])
    found = set()
    for percent in range(5, 100, 15):
        budget = pcn.Budget(**{unit: percent / 100, **options})
        early = refusal(lambda budget=budget: check_reachable(model, budget, example=Example.of(BATCH)))
        assert early == refusal(lambda budget=budget: pcn.make_plan(model, stats, budget))
        found.add(early is None)
    assert found == {True, False}


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
