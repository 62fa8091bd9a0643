"""The switch inside a training loop happens once, at the right moment, and the loop goes on."""

from __future__ import annotations

import gc
import warnings
import weakref
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pcn
from pcn.nn import PCModule
from pcn.switching import Progress, SubspacesSettle


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(96, 8)
    return inputs, inputs[:, :3].argmax(1)


def train(epochs: int, **options: object) -> tuple[nn.Module, list[int], list[float]]:
    torch.manual_seed(3)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    switch = pcn.Switch(model, optimizer, **options)
    inputs, labels = data()
    switched, losses = [], []
    for epoch in range(1, epochs + 1):
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        schedule.step()
        losses.append(loss.item())
        accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
        if switch.after_epoch(epoch, [inputs], accuracy=accuracy) is not None:
            switched.append(epoch)
    return model, switched, losses


def test_it_switches_once_after_the_given_epoch_and_training_goes_on() -> None:
    model, switched, losses = train(8, config=pcn.PCNConfig(rank=12), at=3)
    assert switched == [3]
    assert isinstance(model[2], PCModule)
    assert losses[-1] < losses[2]


def test_a_budget_works_too() -> None:
    model, switched, _ = train(3, params=0.5, at=1)
    assert switched == [1]
    before = sum(p.numel() for p in network().parameters())
    assert sum(p.numel() for p in model.parameters()) <= before // 2


def test_a_budget_is_given_by_any_of_its_numbers() -> None:
    given = {"flops": 0.5, "stored": 0.9}
    model, switched, _ = train(2, at=1, **given)
    assert switched == [1]
    assert pcn.get_plan(model) == pcn.get_plan(train(2, config=pcn.Budget(flops=0.5, stored=0.9), at=1)[0])
    assert repr(pcn.Switch(network(), None, at=3, **given)).endswith("flops=0.5, stored=0.9, at=AfterEpoch(epoch=3))")
    with pytest.raises(pcn.ConfigError, match="a Budget is given whole: put flops and stored into it"):
        pcn.Switch(network(), None, pcn.Budget(params=0.5), **given)


def test_the_papers_heuristic_switches_when_accuracy_slows() -> None:
    _, switched, _ = train(12, config=pcn.PCNConfig(rank=12), at=pcn.AccuracySlows())
    assert len(switched) == 1
    assert switched[0] >= 3


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.floats(0.05, 1), st.floats(0.1, 10))
def test_the_heuristic_does_not_depend_on_the_unit_of_accuracy(seen: list[float], share: float, unit: float) -> None:
    rule = pcn.AccuracySlows(share)
    rises = [b - a for a, b in pairwise(seen)]
    if len(rises) >= 2 and abs(rises[-1] - share * max(rises[:-1])) > 1e-9 * 100 and abs(max(rises[:-1])) > 1e-9:
        scaled = tuple(unit * value for value in seen)
        assert rule.due(Progress(len(seen), accuracies=tuple(seen))) == rule.due(Progress(len(seen), accuracies=scaled))
    elif len(rises) < 2:
        assert not rule.due(Progress(len(seen), accuracies=tuple(seen)))


def test_a_resumed_model_does_not_switch_again() -> None:
    model = network()
    inputs, _ = data()
    plan = pcn.Switch(model, None, config=pcn.PCNConfig(rank=12), at=1).after_epoch(1, [inputs])
    resumed = network()
    plan.reshape_(resumed)
    resumed.load_state_dict(model.state_dict())
    assert pcn.Switch(resumed, None, config=pcn.PCNConfig(rank=12), at=1).after_epoch(2, [inputs]) is None


@pytest.mark.parametrize("at", [-1, True, 1.5, "late"])
def test_a_moment_that_is_none_is_refused(at: object) -> None:
    with pytest.raises(pcn.ConfigError, match=r"at=|AfterEpoch"):
        pcn.Switch(network(), None, at=at)  # type: ignore[arg-type]


def test_the_heuristic_asks_for_the_accuracy_that_it_needs() -> None:
    with pytest.raises(pcn.ConfigError, match="accuracy="):
        pcn.Switch(network(), None, at=pcn.AccuracySlows()).after_epoch(1, [])


def test_a_run_resumed_before_the_switch_remembers_the_accuracies() -> None:
    def switches(accuracies: list[float], switch: pcn.Switch) -> list[bool]:
        batches = [torch.randn(64, 8)]
        return [switch.after_epoch(n, batches, accuracy=a) is not None for n, a in enumerate(accuracies, 1)]

    first = pcn.Switch(network(), None, pcn.PCNConfig(rank=12), at=pcn.AccuracySlows())
    assert not any(switches([40.0, 60.0], first))
    resumed = pcn.Switch(network(), None, pcn.PCNConfig(rank=12), at=pcn.AccuracySlows())
    resumed.load_state_dict(first.state_dict())
    assert switches([61.0], resumed) == [True]


@pytest.mark.parametrize("rule", [pcn.SubspacesSettle(), 2], ids=str)
def test_an_epoch_that_failed_is_told_again(rule: pcn.SubspacesSettle | int) -> None:
    switches = [pcn.Switch(network(), None, pcn.PCNConfig(rank=12), at=rule) for _ in range(2)]
    x, nothing = torch.randn(64, 8), torch.full((10, 8), torch.nan)
    for switch in switches:
        switch.after_epoch(1, [x], accuracy=40.0)
    with pytest.raises(pcn.StatisticsError):
        switches[0].after_epoch(2, [nothing], accuracy=41.0)
    plans = [switch.after_epoch(2, [x], accuracy=41.0) for switch in switches]
    assert str(plans[0]) == str(plans[1])
    states = [{**switch.state_dict(), "directions": None} for switch in switches]
    assert states[0] == states[1]


def test_an_accuracy_that_is_no_number_is_refused() -> None:
    with pytest.raises(pcn.ConfigError, match="finite"):
        pcn.Switch(network(), None, at=3).after_epoch(1, [], accuracy=float("nan"))


def test_a_switch_that_changes_nothing_says_so() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    said = r"changes no layer: .*its input has 16 dimensions, fewer than the rank 5000"
    with pytest.warns(UserWarning, match=said) as told:
        pcn.Switch(model, None, pcn.PCNConfig(rank=5000, exclude=["0"])).now([torch.randn(32, 8)])
    assert [each.filename for each in told] == [__file__]


def rules(ranks: dict[str, int]) -> dict[str, pcn.LayerRule]:
    return {name: pcn.LayerRule(rank=rank) for name, rank in ranks.items()}


@pytest.mark.parametrize("fade", [0, 2])
def test_directions_that_no_sample_has_shown_are_warned_of_once(fade: int) -> None:
    model, batches = network(), [torch.randn(5, 8)]
    switch = pcn.Switch(model, None, pcn.PCNConfig(layers=rules({"2": 5, "4": 20})), fade=fade)
    said = r"'2': 5 samples of 64 inputs show 4 directions, and the others of 5 are made up \(likewise in 4\); give"
    with pytest.warns(UserWarning, match=said) as told:
        switch.after_epoch(1, batches)
    assert [each.filename for each in told] == [__file__]
    with warnings.catch_warnings(action="error"):
        for step in range(fade):
            switch.after_step(step + 1, batches)
    assert switch.plan is not None
    assert "are made up" in (switch.plan.layers["2"].note or "")


@pytest.mark.filterwarnings("error")
def test_samples_that_show_all_that_is_kept_are_enough() -> None:
    ranks = {"0": 8, "2": 4, "4": 64}  # all inputs, one less than samples, all inputs
    plan = pcn.Switch(network(), None, pcn.PCNConfig(layers=rules(ranks))).now([torch.randn(5, 8)])
    assert {layer.name: layer.rank for layer in plan.transformed} == ranks
    assert "more samples may show more" in (plan.layers["2"].note or "")
    random = pcn.PCNConfig(rank=8, basis="random")
    assert pcn.Switch(network(), None, random).now([torch.randn(5, 8)]).transformed


def test_a_basis_that_balances_a_loss_of_ones_own() -> None:
    inputs, labels = data()
    batches = [(inputs[:40], labels[:40]), (inputs[40:], labels[40:])]

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    model = network()
    expected = pcn.analyze(model, batches, gradients=loss).gradient_moments("2")
    balanced, analysis = pcn.PCNConfig(rank=12, basis="balanced"), {"gradients": loss}
    switch = pcn.Switch(model, None, balanced, analysis=analysis, fade=1, keep_statistics=True)
    assert switch.after_epoch(1, batches) is None
    assert switch.statistics is not None
    assert torch.equal(switch.statistics.gradient_moments("2"), expected)
    assert switch.after_step(1, batches) is not None
    assert isinstance(model[2], PCModule)


def test_a_plan_that_changed_nothing_is_no_switch() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))
    batches = [torch.randn(512, 32)]
    with pytest.warns(UserWarning, match="compress_ changes no layer"):
        pcn.compress_(model, batches, pcn.PCNConfig(rank=1.0))
    switch = pcn.Switch(model, None, pcn.PCNConfig(rank=8), at=1)
    assert switch.after_epoch(1, batches) is not None
    assert isinstance(model[2], PCModule)


def test_epochs_that_count_from_zero_are_refused() -> None:
    switch = pcn.Switch(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64)), None, at=1)
    with pytest.raises(pcn.ConfigError, match="epoch=0: give how many epochs are done, which is 1 after the first"):
        switch.after_epoch(0, [torch.randn(512, 32)])


@pytest.mark.parametrize("at", [0, pcn.AfterStep(0)])
@pytest.mark.parametrize("fade", [0, 1])
def test_a_switch_before_any_training_is_told_of_no_epoch(at: int | pcn.AfterStep, fade: int) -> None:
    inputs, _ = data()
    switch = pcn.Switch(network(), None, pcn.PCNConfig(rank=4), at=at, fade=fade)
    plan = switch.after_epoch(0, [inputs])
    assert switch.begun
    assert (plan is None) == bool(fade)
    if fade:
        assert switch.after_step(1, [inputs]) is not None
    assert switch.after_epoch(1, [inputs]) is None
    late = pcn.Switch(network(), None, pcn.PCNConfig(rank=4), at=0)
    assert late.after_epoch(1, [inputs]) is not None


class Remembering(pcn.Switch):
    """A switch that knows what it has measured as long as anybody holds that."""

    def look(self, batches: Any) -> pcn.Statistics:
        found = super().look(batches)
        self.measured_then = weakref.ref(found)
        return found


@pytest.mark.parametrize("fade", [0, 1])
def test_nobody_holds_what_was_measured_after_the_switch(fade: int) -> None:
    inputs, _ = data()
    for kept in (False, True):
        rule = SubspacesSettle(within=0.9)
        switch = Remembering(network(), None, pcn.PCNConfig(rank=4), at=rule, fade=fade, keep_statistics=kept)
        for epoch in (1, 2):
            switch.after_epoch(epoch, [inputs])
        switch.after_step(1, [inputs])
        assert switch.plan is not None
        gc.collect()
        assert (switch.measured_then() is not None) == (switch.statistics is not None) == kept
        assert switch.state_dict()["directions"] == {}


@pytest.mark.parametrize("flag", ["strict", "recalibrate", "keep_statistics"])
def test_what_is_on_or_off_is_nothing_else(flag: str) -> None:
    with pytest.raises(pcn.ConfigError, match=f"{flag}='no': give True or False"):
        pcn.Switch(network(), None, pcn.PCNConfig(rank=4), **{flag: "no"})
