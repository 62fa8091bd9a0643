"""Budgets that choose on which side layers get a basis."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pcn
from pcn.costs.count import count
from pcn.planner.reachable import check_reachable

UNITS = ("params", "stored")


def network(inputs: int, hidden: int) -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, inputs), nn.ReLU(), nn.Linear(inputs, 5)
    )
    return model.double(), torch.randn(200, inputs, dtype=torch.double)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(4, 24),
    st.integers(4, 40),
    st.sampled_from(UNITS),
    st.floats(0.05, 1.0),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.booleans(),
)
def test_what_is_asked_for_is_kept_or_the_least_that_is_said_can_be_had(
    inputs: int, hidden: int, unit: str, share: float, step: int, multiple: int, floor: float, skip_larger: bool
) -> None:
    model, x = network(inputs, hidden)
    stats, now = pcn.analyze(model, [x]), getattr(count(model), "trainable" if unit == "params" else "total")
    how = {"step": step, "floor": floor, "two_sided": True}
    config = pcn.PCNConfig(multiple_of=multiple, skip_larger=skip_larger)
    limit = max(1, int(share * now))
    for _ in range(2):
        try:
            plan = pcn.make_plan(model, stats, pcn.Budget(**{unit: limit}, config=config, **how))
            break
        except pcn.ConfigError as error:
            least = str(error).partition("the least would be ")[2].split(" ")[0].replace(",", "")
            limit = int(least)
    plan.apply_(model, stats)
    after = count(model)
    assert (after.trainable if unit == "params" else after.total) <= limit
    for layer in plan.transformed:
        assert layer.rank is None or layer.rank >= floor * layer.in_features
        if layer.output_rank is not None:
            assert layer.output_rank >= floor * layer.out_features
            assert layer.output_rank % multiple == 0


def test_inputs_are_not_turned_where_all_of_them_are_read() -> None:
    """A basis of all inputs and one of some outputs train what the second does alone, and cost more."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(8, 64, 3)), torch.randn(16, 8, 9, 9)
    plan = pcn.make_plan(model, pcn.analyze(model, [x]), pcn.Budget(params=0.3, two_sided=True, patterns=False))
    assert (plan.layers["0"].rank, plan.layers["0"].output_rank) == (None, 16)


def test_a_layer_of_few_inputs_can_be_cut_on_its_other_side() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 64, 3))
    with pytest.raises(pcn.ConfigError) as caught:
        check_reachable(model, pcn.Budget(params=0.01, two_sided=True))
    assert "nothing can be cut of layers of no more inputs" not in str(caught.value)


def test_what_is_read_by_a_layer_that_no_basis_of_inputs_makes_smaller_stays() -> None:
    """Without some of its inputs it would have to have one; channels of others may go."""
    torch.manual_seed(5)
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(32, 8, 1, stride=2), nn.ReLU(), nn.Conv2d(8, 4, 3))
    with torch.no_grad():
        for parameter in (model[0].weight, model[0].bias):
            parameter[16:] *= 0.01
    stats = pcn.analyze(model, [torch.randn(32, 3, 8, 8)])
    budget = pcn.Budget(stored=0.4, step=4, two_sided=True, drop_channels=True, patterns=False)
    plan = pcn.make_plan(model, stats, budget)
    assert plan.layers["0"].kept_outputs < 32
    assert plan.layers["2"].kept_outputs == 32
    assert plan.layers["2"].output_reason == "'4' reads it, and no smaller form of that layer reads directions"
    assert plan.layers["4"].rank is None


def test_frozen_layers_with_a_rule_are_not_said_to_stay() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), torch.randn(128, 32)
    model[0].requires_grad_(False)
    budget = pcn.Budget(params=0.9, config=pcn.PCNConfig(layers={"0": pcn.LayerRule(output_rank=8)}))
    layer = pcn.make_plan(model, pcn.analyze(model, [x]), budget).layers["0"]
    assert layer.output_rank == 8
    assert layer.reason == "no rank asked for"
