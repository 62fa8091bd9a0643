"""A switch that counts epochs and hears of steps alone says so when it is gone, and no other does."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest

import pcn
from pcn.switching import SwitchRule
from switching.loop import CONFIG, dense, vectors

EPOCH_RULES = [3, pcn.AccuracySlows(), pcn.SubspacesSettle()]


@pytest.mark.parametrize("at", EPOCH_RULES)
def test_a_rule_that_counts_epochs_and_hears_of_steps_alone_is_warned_of_when_its_switch_is_gone(
    at: int | SwitchRule,
) -> None:
    held = [pcn.Switch(dense(), None, CONFIG, at=at)]
    for step in range(1, 121):
        assert held[0].after_step(step, []) is None
    with pytest.warns(UserWarning, match=r"told up to step 120 and of no epoch, .* call switch.after_epoch"):
        let_go(held)


def let_go(held: list[pcn.Switch]) -> None:
    held.clear()
    gc.collect()


def heard_of_an_epoch(switch: pcn.Switch) -> None:
    switch.after_epoch(1, [vectors(9)[0]], accuracy=0.5)


def switched_by_hand(switch: pcn.Switch) -> None:
    switch.now([vectors(9)[0]])


def resumed(switch: pcn.Switch) -> None:
    switch.load_state_dict({**switch.state_dict(), "epoch": 1})


def expects_them(switch: pcn.Switch) -> None:
    switch.expect_epochs()


@pytest.mark.parametrize("at", [*EPOCH_RULES, pcn.AfterStep(200)])
@pytest.mark.parametrize("then", [heard_of_an_epoch, switched_by_hand, resumed, expects_them, None])
def test_a_switch_that_hears_of_an_epoch_later_or_needs_none_goes_without_a_word(
    at: int | SwitchRule, then: Callable[[pcn.Switch], None] | None
) -> None:
    held = [pcn.Switch(dense(), None, CONFIG, at=at)]
    if then is not None or isinstance(at, pcn.AfterStep):  # otherwise it is told nothing at all
        held[0].after_step(1, [])
    if then is not None:
        then(held[0])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        let_go(held)
    assert not [each for each in said if "never switched" in str(each.message)]


@pytest.mark.parametrize("ends_in", ["", "; 1 / 0"])
def test_at_the_end_of_a_program_too_unless_an_error_ended_it(ends_in: str) -> None:
    program = (
        "import pcn; from torch import nn; switch = pcn.Switch(nn.Linear(8, 8), None, pcn.PCNConfig(rank=4), at=3)\n"
        "for step in range(1, 31): switch.after_step(step, [])\n"
        f"None{ends_in}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = "AfterEpoch(epoch=3) was told up to step 30 and of no epoch, so it never switched" in done.stderr
    assert said == (not ends_in)
    assert ("ZeroDivisionError" in done.stderr) == bool(ends_in)
