"""When the switch comes: in the middle of an epoch, or when the subspaces have settled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pcn
from pcn.demo.digits import load_digits
from pcn.demo.network import DigitsNetwork
from pcn.demo.recipe import Recipe, Training
from pcn.nn import PCModule
from pcn.switching import Progress
from switching.loop import CONFIG, dense, step, vectors


@pytest.mark.parametrize("at", [1, 5, 7])
def test_after_a_step_in_the_middle_of_an_epoch(at: int) -> None:
    model = dense()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    switch = pcn.Switch(model, optimizer, CONFIG, at=pcn.AfterStep(at))
    switched, done = [], 0
    for epoch in (1, 2):
        for seed in range(4):
            assert isinstance(model[2], PCModule) == (done >= at)
            step(model, optimizer, vectors(seed))
            done += 1
            if switch.after_step(done, [vectors(9)[0]]) is not None:
                switched.append(done)
        assert switch.after_epoch(epoch, [vectors(9)[0]]) is None
    assert switched == [at]


def test_a_loop_that_tells_no_step_to_a_rule_that_counts_them_is_told_so() -> None:
    switch = pcn.Switch(dense(), None, CONFIG, at=pcn.AfterStep(10))
    switch.after_epoch(1, [])  # which may have been before a run was resumed
    with pytest.raises(pcn.ConfigError, match=r"AfterStep\(step=10\) counts steps, and none .* call switch.after_step"):
        switch.after_epoch(2, [vectors(9)[0]])


def test_a_run_that_began_without_the_switch_tells_its_epochs_first() -> None:
    switch = pcn.Switch(dense(), None, CONFIG, at=pcn.AfterStep(10))
    assert switch.after_epoch(3, []) is None
    assert switch.after_step(7, []) is None
    assert switch.after_epoch(4, []) is None


def test_counts_of_any_kind_are_kept_as_plain_numbers(tmp_path: Path) -> None:
    switch = pcn.Switch(dense(), None, CONFIG, at=pcn.AfterStep(10))
    switch.after_step(np.int64(2), [])
    switch.after_step(torch.tensor(3), [])
    torch.save(switch.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 3
    with pytest.raises(pcn.ConfigError, match=r"step=3.5: give how many are done, a whole number"):
        switch.after_step(3.5, [])  # type: ignore[arg-type]


def test_an_epoch_that_begins_after_a_resumed_one_needs_no_step_first() -> None:
    first = pcn.Switch(dense(), None, CONFIG, at=pcn.AfterStep(10))
    first.after_step(4, [])
    resumed = pcn.Switch(dense(), None, CONFIG, at=pcn.AfterStep(10))
    resumed.load_state_dict(first.state_dict())
    assert resumed.after_epoch(1, []) is None


def test_a_step_that_was_missed_is_made_up_for() -> None:
    switch = pcn.Switch(dense(), None, CONFIG, at=pcn.AfterStep(10))
    assert switch.after_step(8, []) is None
    assert switch.after_step(16, [vectors(9)[0]]) is not None


@pytest.mark.parametrize("rate", [3e-3, 1e-3])
def test_subspaces_settle_in_a_real_run_but_not_in_its_first_epoch(rate: float) -> None:
    digits = load_digits(0)
    training = Training(DigitsNetwork(64), Recipe(learning_rate=rate), 0)
    switch = pcn.Switch(training.model, training.optimizer, at=pcn.SubspacesSettle())
    batches = digits.train.images.split(256)
    assert switch.after_epoch(0, batches) is None  # the network as it was born, which the first epoch turns over
    switched = []
    for epoch in range(1, 9):
        training.epoch(digits.train)
        if switch.after_epoch(epoch, batches) is not None:
            switched.append(epoch)
    assert len(switched) == 1
    assert switched[0] > 1
    movements = switch.state_dict()["movements"]
    assert min(movements[:-1]) > 0.05 >= movements[-1]


movements = st.lists(st.floats(0.06, 1), min_size=1, max_size=12)


@given(movements, st.integers(1, 4))
def test_subspaces_that_no_longer_settle_are_settled(seen: list[float], patience: int) -> None:
    rule = pcn.SubspacesSettle(within=0.05, patience=patience)
    waited = 0
    for n in range(1, len(seen) + 1):
        waited = 0 if n == 1 or seen[n - 1] < min(seen[: n - 1]) else waited + 1
        assert rule.due(Progress(n + 1, movements=tuple(seen[:n]))) == (waited >= patience)


@given(movements)
def test_subspaces_that_barely_move_are_settled(seen: list[float]) -> None:
    assert pcn.SubspacesSettle(within=0.05).due(Progress(len(seen) + 2, movements=(*seen, 0.05)))
    assert not pcn.SubspacesSettle(within=0.05).due(Progress(1))


@pytest.mark.parametrize("options", [{"within": 0}, {"within": 1}, {"patience": 0}, {"patience": True}])
def test_rules_that_mean_nothing_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(pcn.ConfigError, match="SubspacesSettle"):
        pcn.SubspacesSettle(**options)


def test_a_rule_of_ones_own_sees_the_steps_at_the_end_of_an_epoch_too() -> None:
    seen: list[tuple[int, int]] = []

    class Watching:
        def due(self, progress: Progress) -> bool:
            seen.append((progress.epoch, progress.step))
            return False

    switch = pcn.Switch(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), None, at=Watching())
    switch.after_step(1, [])
    switch.after_step(2, [])
    switch.after_epoch(1, [])
    assert seen == [(0, 1), (0, 2), (1, 2)]
