"""Handing out a budget: never more than there is, near the best that there could be, and explained."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.costs.count import count, flops_per_sample
from pcn.planner.allocation import Room, hand_out
from pcn.planner.options import Option, bargains, output_shares
from small import ConvNet

COSTS = st.fixed_dictionaries({"params": st.integers(1, 30), "flops": st.integers(1, 30)})
OPTION = st.builds(Option, st.integers(1, 99), st.none(), COSTS, st.floats(0, 1, allow_subnormal=False))
OFFERS = st.lists(st.lists(OPTION, min_size=1, max_size=5), min_size=1, max_size=4)


def together(options: Iterable[Option]) -> dict[str, int]:
    chosen = list(options)
    return {unit: sum(option.costs[unit] for option in chosen) for unit in ("params", "flops")}


@settings(max_examples=200, deadline=None)
@given(OFFERS, st.integers(1, 90), st.one_of(st.none(), st.integers(1, 90)))
def test_what_is_handed_out_fits_and_is_near_the_best(
    lists: list[list[Option]], params: int, flops: int | None
) -> None:
    offers = {str(number): options for number, options in enumerate(lists)}
    room = Room({"params": params} | ({} if flops is None else {"flops": flops}))
    possible = [sum(option.worth for option in choice) for choice in product(*lists) if room.holds(together(choice))]
    try:
        served = hand_out(offers, room)
    except pcn.ConfigError as error:
        assert "too small" in str(error) or "all limits of the budget together" in str(error)
        assert not possible or flops is not None  # with two limits, what fits may lie between the cheapest of each
        return
    chosen = [served[name].option for name in offers]
    assert all(option in options for option, options in zip(chosen, lists, strict=True))
    assert room.holds(together(chosen))
    if flops is None:  # with one limit, greed on the hull is short of the best by less than one step
        step = max(high.worth - low.worth for options in lists for low in options for high in options)
        assert sum(o.worth for o in chosen) >= max(possible) - step - 1e-9


@settings(max_examples=300, deadline=None)
@given(OFFERS, st.integers(1, 90), st.integers(1, 90))
def test_nothing_is_left_that_fits_and_is_worth_more(lists: list[list[Option]], params: int, flops: int) -> None:
    """Also where a layer that goes on has given up some of one limit for more of the other."""
    offers = {str(number): options for number, options in enumerate(lists)}
    room = Room({"params": params, "flops": flops})
    try:
        chosen = {name: each.option for name, each in hand_out(offers, room).items()}
    except pcn.ConfigError:
        return
    for name, options in offers.items():
        for option in options:
            assert option.worth <= chosen[name].worth or not room.holds(together({**chosen, name: option}.values()))


def test_what_a_layer_gives_up_goes_to_those_that_had_no_room() -> None:
    def option(rank: int, params: int, flops: int, worth: float) -> Option:
        return Option(rank, None, {"params": params, "flops": flops}, worth)

    offers = {
        "a": [option(1, 1, 1, 0.1), option(2, 5, 1, 1.0)],
        "b": [option(1, 6, 1, 0.1), option(2, 1, 9, 0.5)],  # more for fewer parameters, and more operations
    }
    served = hand_out(offers, Room({"params": 10, "flops": 10}))
    assert {name: each.option.rank for name, each in served.items()} == {"a": 2, "b": 2}


COUNTED = st.builds(Option, st.integers(1, 99), st.none(), COSTS, st.integers(0, 40).map(float))  # with equal bargains
MANY = st.lists(st.lists(COUNTED, min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.one_of(OFFERS, MANY), st.integers(1, 90), st.integers(0, 30))
def test_more_room_is_never_worth_less(lists: list[list[Option]], params: int, more: int) -> None:
    offers = {str(number): options for number, options in enumerate(lists)}
    try:
        small = hand_out(offers, Room({"params": params}))
    except pcn.ConfigError:
        return
    large = hand_out(offers, Room({"params": params + more}))
    worth = [sum(each.option.worth for each in served.values()) for served in (small, large)]
    assert worth[1] >= worth[0] - 1e-9


@settings(max_examples=100, deadline=None)
@given(OFFERS, st.integers(0, 60), st.integers(0, 30))
def test_a_budget_that_cannot_be_met_says_what_the_least_would_be(
    lists: list[list[Option]], params: int, others: int
) -> None:
    offers = {str(number): options for number, options in enumerate(lists)}
    least = others + sum(min(option.costs["params"] for option in options) for options in lists)
    if params >= least:
        assert hand_out(offers, Room({"params": params}, {"params": others}))
        return
    with pytest.raises(pcn.ConfigError, match=f"is {least - params} parameters too small.* least would be {least} "):
        hand_out(offers, Room({"params": params}, {"params": others}))


@settings(max_examples=100, deadline=None)
@given(st.lists(OPTION, min_size=1, max_size=8))
def test_bargains_buy_less_and_less(options: list[Option]) -> None:
    found = bargains(options, lambda option: option.costs["params"])
    assert found[0].costs["params"] == min(option.costs["params"] for option in options)
    assert found[-1].worth == max(option.worth for option in options)
    rates = [(b.worth - a.worth) / (b.costs["params"] - a.costs["params"]) for a, b in pairwise(found)]
    assert all(rate > 0 for rate in rates)
    assert rates == sorted(rates, reverse=True)


def network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(2)
    return ConvNet().eval(), torch.randn(64, 3, 8, 8)


@pytest.mark.parametrize("flops", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("params", [None, 0.6])
def test_a_budget_of_operations_is_met_in_the_real_network(flops: float, params: float | None) -> None:
    model, x = network()
    limit = flops * flops_per_sample(model, x)
    try:
        pcn.compress_(model, [x], pcn.Budget(params, flops, step=2))
    except pcn.ConfigError as error:
        assert "FLOPs too small" in str(error)
        assert flops == 0.5
        return
    assert flops_per_sample(model, x) <= limit
    assert params is None or count(model).trainable <= params * count(network()[0]).trainable


@settings(max_examples=12, deadline=None)
@given(params=st.floats(0.31, 0.95), step=st.integers(1, 4))
def test_both_sides_stay_within_the_budget_too(params: float, step: int) -> None:
    model, x = network()
    limit = int(params * count(model).trainable)
    plan = pcn.compress_(
        model, [x], pcn.Budget(params, step=step, two_sided=True, config=pcn.PCNConfig(skip_larger=False))
    )
    assert count(model).trainable <= limit
    for layer in plan.layers.values():
        alone = layer.transformed and layer.rank is None
        assert alone == (layer.reason == "the budget gives it a basis for its outputs alone")


def test_two_sides_are_worth_at_least_one() -> None:
    model, x = network()
    stats = pcn.analyze(model, [x])
    config = pcn.PCNConfig(skip_larger=False)
    kept = []
    for two_sided in (False, True):
        small = network()[0]
        budget = pcn.Budget(0.4, step=1, worth=pcn.Response(), patterns=False, two_sided=two_sided, config=config)
        pcn.make_plan(small, stats, budget).apply_(small, stats)
        kept.append(float((small(x) - model(x)).detach().square().mean()))
    assert kept[1] < kept[0]


def test_the_side_is_chosen_on_which_less_is_lost() -> None:
    """Inputs that vary alike in every direction are best read as they are, where few directions come out of them."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 64)).double(), torch.randn(512, 64).double()
    with torch.no_grad():
        few = torch.linalg.qr(torch.randn(48, 8).double())[0]
        model[0].weight.copy_(few @ few.T @ model[0].weight)
    before = model(x)
    plan = pcn.compress_(model, [x], pcn.Budget(params=0.3, two_sided=True, worth=pcn.Response()))
    first, second = plan.layers.values()
    assert (first.rank, first.output_rank) == (None, 8)
    assert second.rank == 8  # and what comes out of few directions is read along these
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)


def test_the_share_that_outputs_keep_is_of_the_outputs_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 6, generator=generator, dtype=torch.double) * torch.arange(6, 0, -1)
    values, vectors = torch.linalg.eigh(torch.cov(rows.T))
    values, vectors = values.flip(0)[None], vectors.flip(1)[None]
    weight = torch.randn(1, 5, 6, 1, generator=generator, dtype=torch.double)
    shares = output_shares(weight, values, vectors, step=2)
    kept = weight[0, ..., 0] @ vectors[0, :, :4]
    spread = torch.linalg.eigvalsh(kept @ torch.diag(values[0, :4]) @ kept.T).flip(0)
    torch.testing.assert_close(shares[4, 3], spread[:3].sum() / spread.sum())
    assert shares.shape == (7, 6)
    assert float(shares[4, 5]) == pytest.approx(1.0)


def test_every_layer_says_what_more_would_have_bought() -> None:
    model, x = network()
    plan = pcn.make_plan(model, pcn.analyze(model, [x]), pcn.Budget(0.5, step=2))
    noted = [layer.note for layer in plan.transformed if layer.note and "would be worth" in layer.note]
    assert noted
    assert all("parameters" in note for note in noted)
    assert "would be worth" in str(plan)
    model.fc1.requires_grad_(False)
    counted = pcn.make_plan(model, pcn.analyze(model, [x]), pcn.Budget(flops=0.7, step=2))
    assert counted.layers["fc1"].reason == "its weight is frozen"
    assert all("FLOPs" in layer.note for layer in counted.transformed if "would be worth" in (layer.note or ""))


def test_a_budget_is_refused_where_it_says_nothing_or_too_much() -> None:
    model, x = network()
    with pytest.raises(pcn.ConfigError, match="a budget needs params, flops, step_ms, memory_mib, stored"):
        pcn.Budget()
    with pytest.raises(pcn.ConfigError, match="worth=3"):
        pcn.Budget(0.5, worth=3)
    with pytest.raises(pcn.ConfigError, match="given whole"):
        pcn.compress_(model, [x], pcn.Budget(0.5), params=0.3)
    with pytest.raises(pcn.ConfigError, match="needs statistics"):
        pcn.make_plan(model, None, pcn.Budget(0.5))
    with pytest.raises(pcn.ConfigError, match="give a PCNConfig, or a Budget"):
        pcn.make_plan(model, pcn.analyze(model, [x]), 0.25)
    with pytest.raises(pcn.ConfigError, match="give a PCNConfig, or a Budget"):
        pcn.compress_(model, [x], 0.25)
    with pytest.raises(pcn.ConfigError, match=r"keep_outputs=0.5 beside a budget"):
        pcn.Budget(0.5, config=pcn.PCNConfig(keep_outputs=0.5))
    with pytest.raises(pcn.ConfigError, match="worth="):
        pcn.Budget(0.5, worth=pcn.Taylor)
    with pytest.raises(pcn.ConfigError, match="'fcc'"):
        pcn.Switch(model, None, pcn.PCNConfig(exclude=["fcc"]))


def test_a_budget_that_no_ranks_can_meet_is_refused_before_training() -> None:
    model, x = network()
    with pytest.raises(
        pcn.ConfigError, match="parameters too small, even with every layer at its lowest rank: the least"
    ):
        pcn.Switch(model, None, pcn.Budget(50))
    least = 0
    for limit in range(100, 3000, 20):  # whatever passes the early check can in fact be met
        try:
            pcn.Switch(model, None, pcn.Budget(limit, step=2))
        except pcn.ConfigError:
            least = limit
    stats = pcn.analyze(model, [x])
    config = pcn.PCNConfig(skip_larger=False)
    assert pcn.make_plan(model, stats, pcn.Budget(least + 20, step=2, config=config)).transformed
    with pytest.raises(pcn.ConfigError, match="too small"):
        pcn.make_plan(model, stats, pcn.Budget(least - 40, step=2, config=config))


def test_a_looser_second_limit_takes_nothing_away() -> None:
    model, x = network()
    stats = pcn.analyze(model, [x])
    config = pcn.PCNConfig(skip_larger=False)
    for params in (None, 1.0):
        budget = pcn.Budget(params, 0.25, step=1, two_sided=True, config=config)
        assert pcn.make_plan(model, stats, budget).transformed


def test_what_two_limits_leave_is_used_up() -> None:
    """One kind of layer takes operations, the other parameters: at equal prices the second limit was half unused."""

    def layer(params: int, flops: int, scale: float) -> list[Option]:
        steps = range(1, 33)
        return [Option(r, None, {"params": r * params, "flops": r * flops}, scale * r**0.5) for r in steps]

    offers = {f"early {n}": layer(1, 20, 3.0) for n in range(4)} | {f"late {n}": layer(20, 1, 1.0) for n in range(4)}
    limits = {"params": 1200, "flops": 1200}
    served = hand_out(offers, Room(limits))
    costs = together(each.option for each in served.values())
    assert all(0.93 * limits[unit] <= costs[unit] <= limits[unit] for unit in limits)


def test_rules_are_not_taken_for_whole_layers_before_training() -> None:
    model, _ = network()
    rules = dict.fromkeys(("conv2", "conv3", "fc1", "fc2"), pcn.LayerRule(rank=1))
    pcn.Switch(model, None, pcn.Budget(600, config=pcn.PCNConfig(layers=rules)))


def test_a_layer_whose_weight_alone_is_frozen_neither_spends_nor_saves() -> None:
    model, x = network()
    model.fc1.weight.requires_grad_(False)
    limit = int(0.8 * count(model).trainable)
    pcn.compress_(model, [x], pcn.Budget(limit, step=2))
    assert count(model).trainable <= limit


def test_a_layer_that_does_not_run_takes_no_operations() -> None:
    class Assisted(ConvNet):
        def __init__(self) -> None:
            super().__init__()
            self.aux = nn.Linear(16, 16)

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + (self.aux(images.new_ones(1, 16)).sum() if self.training else 0)

    model, x = Assisted(), network()[1]
    assert pcn.compress_(model, [x], pcn.Budget(flops=0.7, step=2)).transformed
