"""Budgets that choose in how many patterns of taps directions are read: nothing is guessed of what these lose."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.errors import ConfigError, StatisticsError
from pcn.planner.options import Option
from pcn.planner.tap_shares import kept_shares, pattern_counts, tap_directions, tap_shares
from pcn.planner.valued import best
from pcn.planner.within import plan_within
from pcn.rewriting.patterns import choose
from pcn.rewriting.taps import look_at_taps
from pcn.running.example import Example
from pcn.training import Settings
from pcn.training.requests import requested

FREE = pcn.PCNConfig(exclude=("0", "9"))


def built() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, (3, 1), groups=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    ).eval()


def images(smooth: int = 2) -> Tensor:
    torch.manual_seed(1)
    small = torch.randn(32, 3, -(-9 // smooth), -(-9 // smooth))
    return nn.functional.interpolate(small, (9, 9), mode="bilinear") if smooth > 1 else small


@torch.no_grad()
def response_kept(plan: pcn.Plan, model: nn.Module, x: Tensor, name: str) -> float:
    """The share of a layer's response that the layer has when it alone is rewritten."""
    only = replace(plan, layers={each: replace(p, rank=None, kernel_rank=None) for each, p in plan.layers.items()})
    only = replace(only, layers={**only.layers, name: plan.layers[name]})
    rewritten = built()
    only.apply_(rewritten, pcn.analyze(rewritten, [x]))
    seen = []
    for each in (model, rewritten):
        handle = each.get_submodule(name).register_forward_hook(lambda module, args, output: seen.append(output))
        each(x)
        handle.remove()
    before, after = (each.flatten(2).movedim(1, -1).flatten(0, 1) for each in seen)
    return 1 - float((before - after).square().sum() / (before - before.mean(0)).square().sum())


@settings(max_examples=60)
@given(st.integers(1, 2), st.integers(1, 6), st.integers(2, 5), st.integers(0, 10**6))
def test_shares_are_those_of_what_would_be_chosen(groups: int, directions: int, taps: int, seed: int) -> None:
    responses = torch.rand(groups, directions, taps, generator=torch.Generator().manual_seed(seed)).double()
    shares = kept_shares(responses, 1, directions)
    coarse = kept_shares(responses, 4, directions)
    looked_at = [*range(min(4, directions + 1)), directions]
    assert torch.equal(coarse[looked_at], shares[looked_at])
    for rank, count in itertools.product(range(1, directions + 1), range(1, taps + 1)):
        among = responses[:, :rank]
        kept = among[choose(among, rank * count).of].sum()
        assert float(shares[rank, count]) == pytest.approx(float(kept / responses.sum()))


@given(st.integers(1, 300))
def test_more_patterns_are_tried_where_there_are_more_taps(taps: int) -> None:
    counts = list(pattern_counts(taps))
    assert counts == sorted(set(counts))
    assert counts[:8] == list(range(1, min(taps, 9)))
    assert all(count < taps for count in counts)
    assert all(after <= 1.25 * before for before, after in itertools.pairwise(counts[4:]))


def test_the_share_that_is_said_is_the_share_that_is_kept() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    for rank, count in ((6, 2), (12, 3), (12, 1)):
        rules = {"3": pcn.LayerRule(rank=rank, kernel_rank=count)}
        plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=None, layers=rules))
        said = tap_shares(model, stats, [plan.layers["3"]], 1)["3"][rank, count]
        # What is left out along one direction and what along others are not quite at right angles.
        assert response_kept(plan, model, x, "3") == pytest.approx(float(said), abs=0.08)


def test_what_two_halves_show_together_is_what_the_whole_shows() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    budget = pcn.Budget(params=0.5, step=1, patterns=True, config=FREE)
    along = tap_directions(model, stats, budget)
    assert along.keys() == {"3", "6"}
    halves = [look_at_taps(model, replace(stats, example=Example.of(half)), along) for half in x.split(20)]
    added = {name: halves[0][name] + halves[1][name] for name in along}
    assert plan_within(model, stats, budget, taps=added) == pcn.make_plan(model, stats, budget)
    zeros = {name: torch.zeros_like(each) for name, each in added.items()}
    with pytest.raises(StatisticsError, match="read little but its mean"):
        plan_within(model, stats, budget, taps=zeros)


@pytest.mark.parametrize(
    "config",
    [
        replace(FREE, layers={"3": pcn.LayerRule(kernel_rank=5)}),
        replace(FREE, layers={"3": pcn.LayerRule(rank=4)}),
        replace(FREE, layers={"3": pcn.LayerRule(order="kept_block")}),
        pcn.PCNConfig(exclude=("0", "3", "9")),
    ],
)
def test_taps_are_looked_at_where_there_is_a_choice(config: pcn.PCNConfig) -> None:
    model = built()
    stats = pcn.analyze(model, [images()])
    budget = pcn.Budget(params=0.5, step=1, patterns=True, config=config)
    assert tap_directions(model, stats, budget).keys() == {"6"}
    model[6].weight.requires_grad_(False)
    assert not tap_directions(model, stats, budget)


def test_statistics_may_be_of_layers_that_were_taken_off_since() -> None:
    model = built()
    stats, body = pcn.analyze(model, [images()], mode="batch"), model[:5]
    budget = pcn.Budget(params=0.5, step=1, patterns=True, config=pcn.PCNConfig(exclude=("0",)))
    assert tap_directions(body, stats, budget).keys() == {"3"}
    planned = pcn.make_plan(body, stats, budget)
    assert pcn.Switch(body, None, budget).after_epoch(1, [images()], statistics=stats) == planned


@pytest.mark.parametrize("worth", [pcn.Response(), pcn.Evenly(), pcn.Hedged()])
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_a_budget_that_chooses_keeps_more_and_spends_what_it_has(worth: pcn.Response, share: float) -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    total = sum(p.numel() for p in model.parameters())
    free = sum(model.get_submodule(name).weight.numel() for name in ("3", "6"))
    limit = int(total - (1 - share) * free)
    chosen = pcn.make_plan(model, stats, pcn.Budget(params=limit, step=1, worth=worth, patterns=True, config=FREE))
    every = pcn.make_plan(model, stats, pcn.Budget(params=limit, step=1, worth=worth, patterns=False, config=FREE))
    assert any(layer.kernel_rank is not None for layer in chosen.layers.values())
    changed = built()
    chosen.apply_(changed, pcn.analyze(changed, [x]))
    spent = sum(p.numel() for p in changed.parameters())
    assert limit - 0.03 * free < spent <= limit
    kept = [sum(response_kept(plan, model, x, name) for name in ("3", "6")) for plan in (chosen, every)]
    assert kept[0] > kept[1]


def test_even_shares_stay_even() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    budget = pcn.Budget(params=0.5, step=1, worth=pcn.Evenly(), patterns=True, config=FREE)
    layers = [pcn.make_plan(model, stats, budget).layers[name] for name in ("3", "6")]
    shares = [layer.rank * layer.trained_taps * layer.groups / (layer.in_features * layer.taps) for layer in layers]
    assert max(shares) - min(shares) < 0.1


def test_noise_gets_more_patterns_than_smooth_images_do() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1))
    spread = 0.7 ** torch.arange(8.0).view(-1, 1, 1)
    noise = spread * torch.randn(32, 8, 12, 12)
    smooth = spread * nn.functional.interpolate(torch.randn(32, 8, 4, 4), (12, 12), mode="bilinear")
    budget = pcn.Budget(params=0.3, step=1, patterns=True)
    counts = [pcn.make_plan(model, pcn.analyze(model, [x]), budget).layers["0"].trained_taps for x in (noise, smooth)]
    assert counts[1] < counts[0]


def test_operations_are_saved_by_fewer_directions_alone() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    plan = pcn.make_plan(model, stats, pcn.Budget(flops=0.6, step=1, patterns=True, config=FREE))
    assert {layer.kernel_rank for layer in plan.transformed} == {None}


def test_what_a_rule_asks_for_is_no_choice() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    rules = {"3": pcn.LayerRule(kernel_rank=5), "6": pcn.LayerRule(kernel_rank=3)}
    budget = pcn.Budget(params=0.7, step=1, patterns=True, config=replace(FREE, layers=rules))
    plan = pcn.make_plan(model, stats, budget)
    assert plan.layers["3"].kernel_rank == 5
    assert plan.layers["6"].kernel_rank is None  # as many as there are taps


def test_the_same_configuration_as_rules_gives_the_same_plan() -> None:
    from pcn.planner.within import fit_budget

    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    budget = pcn.Budget(params=0.7, step=1, patterns=True, config=FREE)
    plan, config = pcn.make_plan(model, stats, budget), fit_budget(model, stats, budget)
    again = pcn.make_plan(model, stats, config)
    forms = [{name: (p.rank, p.kernel_rank) for name, p in each.layers.items()} for each in (plan, again)]
    assert forms[0] == forms[1]
    assert pcn.Plan.from_json(plan.to_json()) == plan


def test_a_plan_says_what_more_would_buy() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    budgets = [pcn.Budget(params=share, step=1, patterns=True, config=FREE) for share in (0.4, 0.45, 0.5, 0.55)]
    said = "\n".join(str(pcn.make_plan(model, stats, budget)) for budget in budgets)
    assert re.search(r"rank \d+ in \d of 9 patterns would be worth .*% more, for \d+ parameters", said)


def test_the_least_that_could_be_had_counts_patterns() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    every = _least(model, stats, pcn.Budget(params=1, step=1, patterns=False, config=FREE))
    least = _least(model, stats, pcn.Budget(params=1, step=1, patterns=True, config=FREE))
    assert least < every
    plan = pcn.make_plan(model, stats, pcn.Budget(params=least, step=1, patterns=True, config=FREE))
    assert plan.layers["3"].rank == plan.layers["3"].kernel_rank == 1


def _least(model: nn.Module, stats: pcn.Statistics, budget: pcn.Budget) -> int:
    with pytest.raises(ConfigError) as refused:
        pcn.make_plan(model, stats, budget)
    return int(str(refused.value).partition("the least would be ")[2].partition(" ")[0].replace(",", ""))


def test_channels_may_go_as_well() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    budget = pcn.Budget(params=0.5, step=1, patterns=True, drop_channels=True, config=replace(FREE, exclude=()))
    plan = pcn.make_plan(model, stats, budget)
    changed = built()
    plan.apply_(changed, stats)
    assert sum(p.numel() for p in changed.parameters()) <= 0.5 * sum(p.numel() for p in model.parameters())
    assert changed(x).isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"config": pcn.PCNConfig(kernel_rank=4)}, "kernel_rank=4 beside patterns=True"),
        ({"memory_mib": 0.5}, "measured for one number of patterns"),
        ({"step_ms": 0.5}, "measured for one number of patterns"),
    ],
)
def test_what_cannot_be_chosen_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pcn.Budget(params=0.5, patterns=True, **wrong)


def test_patterns_need_a_batch_to_be_measured_on() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x], forward=lambda model, batch: model(batch))
    without = replace(stats, example=None)
    with pytest.raises(StatisticsError, match="hold none"):
        pcn.make_plan(model, without, pcn.Budget(params=0.7, step=1, patterns=True, config=FREE))


def test_a_constant_input_has_no_patterns_and_is_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3))
    stats = pcn.analyze(model, [torch.zeros(4, 8, 9, 9)])
    with pytest.raises(StatisticsError, match=r"'0': patterns .* read little but its mean"):
        pcn.make_plan(model, stats, pcn.Budget(params=0.5, step=1, patterns=True))


def test_the_best_of_a_price_are_left() -> None:
    def option(cost: int, worth: float) -> Option:
        return Option(1, None, {"params": cost}, worth)

    offered = [option(1, 0.1), option(2, 0.3), option(2, 0.2), option(3, 0.25), option(4, 0.3)]
    found = best(offered, lambda each: each.costs["params"])
    assert [(each.costs["params"], each.worth) for each in found] == [(1, 0.1), (2, 0.3), (4, 0.3)]


def test_the_settings_name_it() -> None:
    wish = requested(Settings(params=0.25, patterns=True, switch_at="1"))
    assert isinstance(wish, pcn.Budget)
    assert wish.patterns
    with pytest.raises(ConfigError, match="patterns without a budget"):
        Settings(patterns=True)
