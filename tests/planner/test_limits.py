"""A limit of a budget means the same however it is written, and what is said to be reachable is."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import pcn
from pcn.costs.usage import MIB, MS
from pcn.planner.limits import read_limit
from pcn.planner.units import UNITS
from pcn.training import Settings
from pcn.training.requests import requested
from planned_network import BATCH, network

NOW = 10**9  # what is taken now: ns, bytes or a number


@pytest.mark.parametrize(
    ("name", "given", "allowed"),
    [
        ("params", 0.25, NOW // 4),
        ("params", "25%", NOW // 4),
        ("params", 4000, 4000),
        ("params", 4000.0, 4000),
        ("params", np.int64(4000), 4000),
        ("params", np.float32(0.25), NOW // 4),
        ("flops", np.float64(4000), 4000),
        ("params", 1, 1),
        ("params", 1.0, NOW),
        ("step_ms", 1, MS),
        ("step_ms", 1.0, NOW),
        ("step_ms", 0.3, 3 * NOW // 10),
        ("step_ms", "30%", 3 * NOW // 10),
        ("step_ms", "0.3 ms", 300_000),
        ("step_ms", "0.3ms", 300_000),
        ("memory_mib", " .5 mib ", MIB // 2),
        ("memory_mib", "100 %", NOW),
        ("memory_mib", 2.5, 5 * MIB // 2),
    ],
)
def test_numbers_up_to_one_are_fractions_and_text_says_what_it_is(name: str, given: object, allowed: int) -> None:
    assert pcn.Budget(**{name: given}).limit(name, NOW) == allowed
    if isinstance(given, int | float):  # as text on the command line
        wish = requested(Settings(**{name: str(given)}, switch_at="1"))
        assert isinstance(wish, pcn.Budget)
        assert wish.limit(name, NOW) == allowed


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("wrong", ["half", "0 %", "101%", "-1%", "0.3 s", "1 GiB", "%", "", "nan", True, np.True_, 0])
def test_other_limits_are_refused_with_what_could_be_given(name: str, wrong: object) -> None:
    for ask in (pcn.Budget, Settings):
        with pytest.raises(pcn.ConfigError, match=rf"{name}=.*: give a number of .*a fraction in \(0, 1\]"):
            ask(**{name: wrong})


@pytest.mark.parametrize(
    ("given", "number"), [("25", "25"), ("0.25", "0.25"), (" 1e3 ", "1000.0"), ("1.5", None), ("0", None), ("", None)]
)
def test_a_number_in_quotes_is_told_to_stand_without(given: str, number: str | None) -> None:
    with pytest.raises(pcn.ConfigError) as refused:
        pcn.Budget(params=given)
    advice = re.search(r": write params=(\S+) without quotes$", str(refused.value))
    assert (advice and advice[1]) == number


@pytest.mark.parametrize("wrong", [1.5, 4000.5, "0.5 parameters"])
def test_parameters_are_whole(wrong: object) -> None:
    with pytest.raises(pcn.ConfigError, match="params="):
        pcn.Budget(params=wrong)


@example(100, 2900)
@given(st.integers(1, 10**7), st.integers(1, 10**4))
def test_a_fraction_is_exact(now: int, part: int) -> None:
    """In floating point 0.29 of 100 is 28.999999999999996."""
    assert pcn.Budget(params=part / 10**4).limit("params", now) == part * now // 10**4


@given(st.sampled_from(list(UNITS)), st.integers(1, 10**12), st.integers(0, 10**12))
def test_what_is_said_to_be_reachable_holds_as_it_is_said(name: str, least: int, more: int) -> None:
    now = least + more
    amount, share = re.fullmatch(r"(.+) \((.+) of now\)", UNITS[name].at_least(least, now)).groups()
    for said in (amount.replace(",", ""), share):
        value, of_now = read_limit(name, said)
        assert least <= int(value * (now if of_now else UNITS[name].parts))
        assert value - least / Fraction(now if of_now else UNITS[name].parts) <= Fraction(1, 1000)


def test_an_unreachable_budget_is_told_what_can_be_given_in_its_place() -> None:
    for limit in ({"params": 0.01}, {"memory_mib": 0.01}, {"memory_mib": "0.01 MiB"}):
        name = next(iter(limit))
        with pytest.raises(pcn.ConfigError, match=r"the budget of .* too small") as refused:
            pcn.compress_(network(), [BATCH], **limit)
        least, share = re.search(r"the least would be (.*?) \((.*?) of now\)", str(refused.value)).groups()
        for said in (least.replace(",", ""), share):
            pcn.compress_(network(), [BATCH], **{name: said})


def test_a_rank_beside_a_budget_is_refused() -> None:
    for rank in (4, 0.5, pcn.Threshold(1e9), pcn.ExplainedVariance(0.9)):
        config = pcn.PCNConfig(rank=rank)
        with pytest.raises(pcn.ConfigError, match=r"rank=.* beside a budget, which chooses the ranks itself"):
            pcn.Budget(params=0.5, config=config)
        with pytest.raises(pcn.ConfigError, match="beside a budget"):
            pcn.compress_(network(), [BATCH], config, params=0.5)
        with pytest.raises(pcn.ConfigError, match="beside a budget"):
            pcn.Switch(network(), None, config, params=0.5)
    ruled = pcn.PCNConfig(layers={"7": pcn.LayerRule(rank=4)})
    assert pcn.compress_(network(), [BATCH], ruled, params=0.7).layers["7"].rank == 4


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 64))


@pytest.mark.parametrize("unit", UNITS)
def test_a_model_without_sizes_cannot_be_held_against_a_budget(unit: str) -> None:
    budget = pcn.Budget(**{unit: 0.5})
    with pytest.raises(pcn.ConfigError, match=r"'0\.weight' is lazy, .* run the model once first"):
        pcn.Switch(lazy(), None, budget)
    with pytest.raises(pcn.ConfigError, match="is lazy"):
        pcn.compress_(lazy(), [torch.randn(256, 64)], budget)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_model_of_which_nothing_can_change_is_told_why() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.ReLU()))
    for call in (
        lambda: pcn.compress_(model, [torch.randn(256, 64)], params=0.6),
        lambda: pcn.Switch(model, None, params=0.6),
    ):
        with pytest.raises(pcn.ConfigError, match="no layer of the model can be changed; '0': it is TorchScript"):
            call()
