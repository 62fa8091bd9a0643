"""What a budget does where nobody says: it goes by its limits, and by whether there is a batch to look at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pcn
from pcn.costs.count import count
from pcn.planner import tap_shares
from pcn.planner.within import fit_budget
from pcn.training import Settings
from pcn.training.requests import requested
from planned_network import BATCH, network

LIMITS = ("params", "flops", "step_ms", "memory_mib", "stored")
MEASURED = {"step_ms", "memory_mib"}


@given(limits=st.sets(st.sampled_from(LIMITS), min_size=1), kernel_rank=st.sampled_from([None, 2]))
def test_worth_and_patterns_go_by_the_limits(limits: set[str], kernel_rank: int | None) -> None:
    budget = pcn.Budget(**dict.fromkeys(limits, 0.5), config=pcn.PCNConfig(kernel_rank=kernel_rank))
    found = budget.settled()
    assert found.worth == (pcn.Hedged() if "params" in limits else pcn.Response())
    assert found.patterns is (bool(limits & {"params", "stored"}) and not limits & MEASURED and kernel_rank is None)
    assert found.settled() == found
    assert replace(found, worth=None, patterns=None) == budget


@given(patterns=st.booleans(), worth=st.sampled_from([pcn.Response(), pcn.Evenly(), pcn.Taylor()]))
def test_what_is_said_stays(patterns: bool, worth: pcn.Response) -> None:
    budget = pcn.Budget(params=0.5, worth=worth, patterns=patterns)
    assert budget.settled() == budget
    assert budget.needs_batches is worth.needs_batches


def test_convolutions_read_in_patterns_where_parameters_are_limited() -> None:
    model = network()
    total = count(model).trainable
    plan = pcn.compress_(model, [BATCH], params=0.4)
    assert plan.layers["3"].kernel_rank is not None
    assert count(model).trainable <= 0.4 * total
    said = pcn.Budget(params=0.4, worth=pcn.Hedged(), patterns=True)
    assert pcn.compress_(network(), [BATCH], said) == plan
    for budget in (pcn.Budget(flops=0.8), pcn.Budget(params=0.4, patterns=False)):
        taps = {layer.kernel_rank for layer in pcn.compress_(network(), [BATCH], budget).layers.values()}
        assert taps == {None}


def test_statistics_without_a_batch_give_a_plan_with_every_tap() -> None:
    model, budget = network(), pcn.Budget(params=0.4)
    kept = replace(pcn.analyze(model, [BATCH]), example=None)
    plan, every = (pcn.make_plan(model, kept, each) for each in (budget, replace(budget, patterns=False)))
    assert [(layer.rank, layer.kernel_rank) for layer in plan.layers.values()] == [
        (layer.rank, None) for layer in every.layers.values()
    ]
    said = "patterns of taps are measured on a batch, and these statistics hold none"
    assert {name for name, layer in plan.layers.items() if said in (layer.note or "")} == {"3"}
    assert said not in str(every)
    assert pcn.Switch(network(), None, budget).after_epoch(1, [BATCH], statistics=kept).layers == plan.layers
    config = fit_budget(model, kept, budget)
    assert all(rule.kernel_rank is None for rule in config.layers.values())
    with pytest.raises(pcn.StatisticsError, match="patterns=True"):
        pcn.make_plan(model, kept, replace(budget, patterns=True))


def test_only_layers_that_could_have_patterns_are_said_to_have_none() -> None:
    model = network()
    kept = replace(pcn.analyze(model, [BATCH]), example=None)
    for config in (pcn.PCNConfig(order="kept_block"), pcn.PCNConfig(layers={"3": pcn.LayerRule(kernel_rank=9)})):
        plan = pcn.make_plan(model, kept, pcn.Budget(params=0.4, config=config))
        assert plan.layers["3"].changed
        assert "patterns" not in (plan.layers["3"].note or "")


def dead() -> nn.Sequential:
    """A network whose first layer puts out nothing but zeros."""
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    nn.init.constant_(model[0].bias, -100.0)
    return model.train()


def test_a_layer_that_reads_nothing_trains_every_tap_unless_patterns_are_asked_for() -> None:
    model, total = dead(), count(dead()).trainable
    plan = pcn.Switch(model, None, params=0.3, at=1).after_epoch(1, [BATCH])
    assert count(model).trainable <= 0.3 * total
    for name in ("2", "4"):
        assert plan.layers[name].kernel_rank is None
        assert "read little but its mean in the first batch" in plan.layers[name].note
    assert pcn.compress_(dead(), [BATCH], params=0.3) == plan
    with pytest.raises(pcn.StatisticsError, match="patterns=False"):
        pcn.compress_(dead(), [BATCH], pcn.Budget(params=0.3, patterns=True))


def test_a_worth_that_looks_empty_is_one() -> None:
    class Empty(pcn.Response):
        def __len__(self) -> int:
            return 0

    assert isinstance(pcn.Budget(params=0.5, worth=Empty()).settled().worth, Empty)


def test_settings_from_before_patterns_were_chosen_mean_what_they_did() -> None:
    was = {"worth": "response", "patterns": False}
    for without in ({"rank": "0.5"}, {"switch_at": "never"}):
        assert Settings.from_mapping({**was, **without}).worth == "response"
    wish = requested(Settings.from_mapping({**was, "params": 0.25, "switch_at": "1"}))
    assert wish == replace(wish, worth=pcn.Response(), patterns=False)


def test_a_switch_chooses_as_the_front_door_does() -> None:
    model, other = network().train(), network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = pcn.Switch(model, optimizer, params=0.4, at=1).after_epoch(1, [BATCH])
    assert plan == pcn.compress_(other, [BATCH], params=0.4, mode="batch")
    assert plan.layers["3"].kernel_rank is not None


def smooth(number: int) -> torch.Tensor:
    return nn.functional.avg_pool2d(torch.randn(number, 3, 14, 14), 3, 1)


@pytest.mark.parametrize("size", [1, 16])
def test_a_first_batch_that_shows_little_does_not_decide(size: int) -> None:
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    x, budget = smooth(64), pcn.Budget(params=0.4)
    black = x.clone()
    black[:size] = 0
    usual, plan = (pcn.make_plan(model, pcn.analyze(model, list(of.split(size))), budget) for of in (x, black))
    for name in ("2", "4"):
        assert usual.layers[name].kernel_rank is not None
        assert plan.layers[name].kernel_rank is None
        assert "read little but its mean in the first batch" in plan.layers[name].note
    with pytest.raises(pcn.StatisticsError, match="read little but its mean there, or they hold none"):
        pcn.make_plan(model, pcn.analyze(model, list(black.split(size))), replace(budget, patterns=True))


def test_a_plan_with_patterns_needs_a_batch_to_be_applied() -> None:
    model = network()
    stats = pcn.analyze(model, [BATCH])
    plan = pcn.make_plan(model, stats, pcn.Budget(params=0.4))
    with pytest.raises(pcn.StatisticsError, match="or they hold none"):
        plan.apply_(model, replace(stats, example=None))
    assert type(model[3]) is nn.Conv2d


def test_kernels_of_very_many_taps_are_not_searched_for_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_shares, "MOST", 24 * 9**2 - 1)  # what the one convolution that could have them takes
    model = network()
    stats = pcn.analyze(model, [BATCH])
    plan = pcn.make_plan(model, stats, pcn.Budget(params=0.4))
    assert plan.layers["3"].kernel_rank is None
    assert "too many of them to look for patterns" in plan.layers["3"].note
    assert pcn.Switch(network(), None, params=0.4).after_epoch(1, [BATCH]).layers["3"].kernel_rank is None
    asked = pcn.make_plan(model, stats, pcn.Budget(params=0.4, patterns=True))
    assert asked.layers["3"].kernel_rank is not None
