"""What is left of a budget that would have bought more: how much, and which limit or rule is why."""

from __future__ import annotations

import copy
import re
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.costs.count import count
from pcn.costs.usage import MIB, Usage
from pcn.errors import FileError
from pcn.planner.measured import LayerUsage, Measured
from pcn.planner.unspent import NOTHING_MORE

ANY_SIZE = pcn.PCNConfig(skip_larger=False)


@cache
def network() -> tuple[nn.Module, Tensor, pcn.Statistics]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    x = torch.randn(256, 32)
    return model, x, pcn.analyze(model, [x])


def planned(budget: pcn.Budget, measured: Measured | None = None) -> pcn.Plan:
    model, _, stats = network()
    return pcn.make_plan(model, stats, budget, measured=measured)


def left_of(plan: pcn.Plan, limit: int) -> int:
    """Trained parameters that the model really leaves of a limit."""
    model, _, stats = network()
    changed = copy.deepcopy(model)
    plan.apply_(changed, stats)
    return limit - count(changed).trainable


def test_the_rule_that_binds_is_named_and_without_it_more_is_spent() -> None:
    total = count(network()[0]).trainable
    plan = planned(pcn.Budget(params=0.8))
    left = left_of(plan, int(0.8 * total))
    share = left / int(0.8 * total)
    assert plan.unspent == (
        f"{left:,} parameters ({share:.1%} of params) stay unused, as no layer may get larger or slower "
        "(PCNConfig(skip_larger=False) lets them)"
    )
    kept = planned(pcn.Budget(params=0.8, config=pcn.PCNConfig(keep_dropped=True)))  # with more stored than now
    beside = "slower, not counting the weights that keep_dropped=True keeps beside them "
    assert kept.unspent == plan.unspent.replace("slower ", beside)
    larger = planned(pcn.Budget(params=0.8, config=ANY_SIZE))
    assert larger.unspent is None
    assert left_of(larger, int(0.8 * total)) < left


def test_the_limit_that_binds_is_named_and_with_more_of_it_more_is_spent() -> None:
    total = count(network()[0]).trainable
    plan, more = (planned(pcn.Budget(params=0.8, flops=flops)) for flops in (0.5, 0.7))
    left = left_of(plan, int(0.8 * total))
    share = left / int(0.8 * total)
    assert plan.unspent == f"{left:,} parameters ({share:.1%} of params) stay unused, as flops has no room for more"
    assert left_of(more, int(0.8 * total)) < left


def measured_memory() -> Measured:
    """The first layer takes more memory with a basis than it does now, from the second step on."""

    def layer(name: str, whole: int, steps: list[int]) -> LayerUsage:
        width = network()[0].get_submodule(name).in_features
        ranks = [8, width // 2, width]
        tried = {(r, None): Usage(activations_bytes=b) for r, b in zip(ranks, steps, strict=True)}
        return LayerUsage(Usage(activations_bytes=whole), tried)

    layers = {
        "0": layer("0", 10 * MIB, [5 * MIB, 11 * MIB, 12 * MIB]),
        "2": layer("2", 20 * MIB, [2 * MIB, 3 * MIB, 4 * MIB]),
        "4": layer("4", 1 * MIB, [1 * MIB, 1 * MIB, 1 * MIB]),
    }
    return Measured(Usage(), layers)


def test_that_no_layer_may_take_more_memory_is_said() -> None:
    measured = measured_memory()
    everything = {"2": pcn.LayerRule(rank=8), "4": pcn.LayerRule(rank=8)}
    config = pcn.PCNConfig(skip_larger=False, layers=everything)
    plan = planned(pcn.Budget(params=0.35, memory_mib="100%", config=config), measured)
    assert plan.layers["0"].rank == 8
    assert plan.unspent is not None
    assert re.fullmatch(
        r"[\d.]+ MiB \([\d.]+% of memory_mib\) and [\d,]+ parameters \([\d.]+% of params\) stay unused, "
        r"as no layer may take more memory than now",
        plan.unspent,
    )


def test_every_rule_that_stands_in_the_way_is_said() -> None:
    plan = planned(pcn.Budget(params=0.5, memory_mib="100%"), measured_memory())
    assert plan.unspent is not None
    assert plan.unspent.endswith(
        " stay unused, as no layer may take more memory than now and no layer may get larger or slower "
        "(PCNConfig(skip_larger=False) lets them)"
    )


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.1, 1.0), st.integers(1, 8), st.sampled_from([pcn.Response(), pcn.Evenly(), pcn.Hedged()]), st.booleans()
)
def test_one_limit_without_a_rule_is_spent(share: float, step: int, worth: pcn.Response, two_sided: bool) -> None:
    try:
        plan = planned(pcn.Budget(params=share, step=step, worth=worth, two_sided=two_sided, config=ANY_SIZE))
    except pcn.ConfigError as refused:
        assert "the least would be" in str(refused)
        return
    assert plan.unspent is None or NOTHING_MORE in plan.unspent


@settings(max_examples=60, deadline=None)
@given(st.floats(0.3, 1.0), st.floats(0.3, 1.0), st.floats(0.3, 1.0), st.booleans())
def test_what_is_unused_is_never_what_binds(params: float, flops: float, memory: float, skip_larger: bool) -> None:
    budget = pcn.Budget(params, flops, memory_mib=memory, step=4, config=pcn.PCNConfig(skip_larger=skip_larger))
    try:
        plan = planned(budget, measured_memory())
    except pcn.ConfigError as refused:
        assert "too small" in str(refused) or "together" in str(refused)
        return
    if plan.unspent is not None:
        unused, _, why = plan.unspent.partition(" stay unused, as ")
        assert why
        for unit in budget.units:
            assert not (f"of {unit})" in unused and f"{unit} has no room" in why)
    assert pcn.Plan.from_json(plan.to_json()) == plan


def test_with_channels_dropped_it_is_said_too() -> None:
    plan = planned(pcn.Budget(params=0.9, flops=0.4, worth=pcn.Response(), drop_channels=True))
    assert plan.slices
    assert plan.unspent is not None
    assert plan.unspent.endswith("stay unused, as flops has no room for more")


def test_it_is_printed_kept_in_files_and_gone_with_the_next_change() -> None:
    plan = planned(pcn.Budget(params=0.8))
    assert plan.unspent is not None
    assert plan.unspent in str(plan)
    assert plan.unspent in plan._repr_html_()
    assert pcn.Plan.from_json(plan.to_json()) == plan
    assert plan.with_rank("2", 8).unspent is None
    with pytest.raises(FileError, match="unspent"):
        pcn.Plan.from_json(plan.to_json().replace(f'"{plan.unspent}"', "3"))
    assert planned(pcn.Budget(params=0.3)).unspent is None


@pytest.mark.parametrize("worth", [pcn.Response(), pcn.Hedged()])
def test_what_nobody_gains_by_is_said_to_be_left(worth: pcn.Response) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 4))
    stats = pcn.analyze(model, [torch.randn(20, 200)])
    plan = pcn.make_plan(model, stats, pcn.Budget(params=0.9, worth=worth))
    assert plan.layers["0"].rank == 24  # 19 directions were shown, in steps of eight
    assert plan.unspent is not None
    assert NOTHING_MORE in plan.unspent
