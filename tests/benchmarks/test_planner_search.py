"""The search for a planner: arms that can be set up, trials that fork from one parent, and the table of them."""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch

from pcn.costs.count import count, flops_per_sample
from pcn.training import load_data
from pcn.training.requests import build_model


def test_every_arm_of_the_search_can_be_set_up(tmp_path: Path) -> None:
    import planner_search as search
    from pcn import models
    from pcn.models import wide_resnet20
    from pcn.training.requests import requested

    assert next(iter(search.ARMS)) == "plain directions"
    resnet, conv4 = ([name for name, _ in model.named_modules()] for model in (wide_resnet20(width=4), models.conv4()))
    for trial in [search.Trial(arm, 3, epochs) for arm in search.ARMS for epochs in (20, 60)]:
        settings = search.settings(trial, tmp_path)
        assert settings.seed == 3
        assert settings.model_options == {} or settings.model_options["target"] == trial.target
        assert trial.target == (101_810 if "conv4" in trial.arm else 1_094_154)
        if trial.switch_epoch is None:
            assert settings.switch_at == "never"
            assert trial.parent is None
            continue
        assert int(settings.switch_at) == trial.switch_epoch < settings.epochs
        first = settings if trial.parent is None else search.settings(trial.parent, tmp_path)
        assert first.weight_decay in (settings.weight_decay, 1e-4)
        assert first.model == settings.model
        asked = requested(settings)
        getattr(asked, "config", asked).check_names(conv4 if settings.model == "conv4" else resnet)


def test_shortcuts_are_left_whole_where_an_arm_says_so(tmp_path: Path) -> None:
    import planner_search as search
    from pcn.models import wide_resnet20
    from peers.arms import PATTERNS

    even = "tuned, patterns by response, kernel rank 4, even ranks"
    arm = f"{even}, shortcuts whole"
    assert arm in PATTERNS
    globs = search.settings(search.Trial(arm, 0), tmp_path).exclude
    names = [name for name, layer in wide_resnet20(width=4).named_modules() if hasattr(layer, "weight")]
    excluded = {name for name in names if any(fnmatch(name, each) for each in globs)}
    shortcuts = {f"stage{stage}.0.shortcut.conv" for stage in (1, 2, 3)}
    assert excluded >= {"conv1", "fc", *shortcuts}
    assert not any(name.endswith((".conv1", ".conv2")) for name in excluded)


def test_a_plan_with_the_narrower_networks_operations_has_no_more_than_that_has() -> None:
    import planner_search as search
    from peers.arms import NARROW_FLOPS

    narrow = build_model(search.settings(search.Trial("narrow", 0), Path("none")))
    assert flops_per_sample(narrow, torch.ones(1, 3, 32, 32)) == NARROW_FLOPS


def test_a_longer_trial_switches_as_much_later() -> None:
    import planner_search as search

    fresh = "tuned, patterns chosen, hedged, fresh optimizer"
    arms = ("taylor", "switch after 4", "narrow", "parent", "decay 5e-4", "fresh optimizer, no decay", fresh)
    short, long = ([search.Trial(arm, 0, epochs) for arm in arms] for epochs in (20, 60))
    assert [trial.switch_epoch for trial in short] == [2, 4, None, None, 2, 2, 2]
    assert [trial.switch_epoch for trial in long] == [5, 12, None, None, 5, 5, 5]
    parents = ["parent", "parent", None, None, "parent, decay 5e-4", "parent", "parent, tuned"]
    assert [trial.parent and trial.parent.arm for trial in long] == parents


def test_promising_arms_are_asked_for_as_a_group() -> None:
    import planner_search as search
    from peers.arms import GROUPS, PROMISING

    asked = search.arguments().parse_args(["--arms", "taylor", "promising", "plain directions", "narrow"]).arms
    first, *rest = search.named(asked)
    assert (first, rest[:-1], rest[-1]) == ("taylor", list(PROMISING), "plain directions")
    assert {arm for group in GROUPS.values() for arm in group} <= set(search.ARMS)


@pytest.fixture
def tiny_search(tiny_parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The search on a tiny network, with all arms on one seed."""
    import planner_search as search
    from records import Records

    monkeypatch.setattr(search, "PARENT", "tiny")
    work = {"data": tmp_path, "work": tmp_path / "work", "eager": True, "epochs": 20}
    options = argparse.Namespace(
        arms=[name for name, arm in search.ARMS.items() if "network" not in arm],
        seeds=[0],
        together=1,
        time_limit=math.inf,
        **work,
    )
    return search.Search(Records(tmp_path / "search.json"), options)


def trainer(arm: str, epochs: int = 20, **changes: Any) -> Any:
    """A trainer with the switch of an arm."""
    import planner_search as search
    from peers.trainer import PeerTrainer

    settings = dataclasses.replace(search.settings(search.Trial(arm, 0, epochs), Path("none")), **changes)
    data = load_data(settings, torch.device("cpu"), torch.float32)
    return PeerTrainer(settings, data, make_switch=search.ARMS[arm].get("switch"))


@pytest.mark.usefixtures("tiny_search")
def test_a_longer_trial_changes_again_as_much_later() -> None:
    rewhitened = "batch statistics, precondition 1, whitened again every 3 epochs, taylor"
    for arm in ("two cuts", "basis trained to epoch 5"):
        assert [trainer(arm, epochs).switch.again_at for epochs in (20, 60)] == [5, 15]
    assert [trainer(rewhitened, epochs).switch.every for epochs in (20, 60)] == [3, 9]


@pytest.mark.usefixtures("tiny_search")
@pytest.mark.parametrize("arm", ["two cuts", "basis trained to epoch 5", "sized by weights, taylor"])
@pytest.mark.parametrize("mode", ["eval", "batch"])
def test_a_switch_of_its_own_looks_at_the_network_as_its_control_does(arm: str, mode: str) -> None:
    own, control = trainer(arm, analysis_mode=mode), trainer("fresh optimizer", analysis_mode=mode)
    assert own.switch.analysis == control.switch.analysis
    assert own.switch.analysis["mode"] == mode


@pytest.mark.usefixtures("tiny_search")
def test_decay_grows_at_the_switch_and_not_before() -> None:
    own = trainer("tuned, patterns by response, kernel rank 4, even ranks, four times the decay")
    seen = [own.optimizer.param_groups[0]["weight_decay"]]
    own.switch.after_epoch(1, own.calibration)
    assert own.switch.plan is not None
    seen.append(own.optimizer.param_groups[0]["weight_decay"])
    assert seen == [5e-4, 2e-3]


@pytest.mark.usefixtures("tiny_search")
@pytest.mark.parametrize("arm", ["tuned, factors trained, even ranks", "tuned, svd, a quarter"])
def test_both_factors_are_trained_within_the_budget(arm: str) -> None:
    own = trainer(arm)
    own.switch.after_epoch(1, own.calibration)
    trained = sum(each.numel() for each in own.model.parameters())  # all of them: there is no frozen basis
    assert trained == count(own.model).trainable
    assert 0.9 * own.settings.params <= trained <= own.settings.params


@pytest.mark.usefixtures("tiny_search")
def test_weights_as_they_were_decay_from_the_switch_on_and_when_a_run_goes_on() -> None:
    arm = "tuned, patterns chosen, hedged, dense weight decayed"
    first, resumed = trainer(arm), trainer(arm)
    hooks = [len(first.optimizer._optimizer_step_pre_hooks)]
    first.switch.after_epoch(1, first.calibration)
    assert first.switch.plan is not None
    hooks.append(len(first.optimizer._optimizer_step_pre_hooks))
    resumed.switch.load_state_dict(first.switch.state_dict())
    hooks.append(len(resumed.optimizer._optimizer_step_pre_hooks))
    assert hooks == [0, 1, 1]


def test_a_narrower_network_is_preconditioned_and_nothing_else(tiny_search: Any) -> None:
    import planner_search as search
    from peers.one_run import run

    tiny_search.options.epochs, tiny_search.options.arms = 2, ["narrow", "narrow, precondition 1"]
    plain, own = tiny_search.left()
    assert (own.parent, tiny_search.job(own).trunk) == (None, None)
    assert (own.switch_epoch, search.Trial(own.arm, 0, 20).switch_epoch) == (1, 1)  # the tiny parent's
    for trial in (plain, own):
        tiny_search.finished(trial, run(tiny_search.job(trial)))
    before, after = tiny_search.records.records
    assert after["switch_epoch"] == 1
    biases = after["trainable_params"] - before["trainable_params"]
    assert 0 <= biases < 0.02 * before["trainable_params"]  # no weight went; layers that had no bias gain one
    assert after["total_params"] > after["trainable_params"]  # the bases


def test_trials_of_the_search_fork_from_one_parent(tiny_search: Any) -> None:
    import planner_search as search
    from peers.one_run import run

    tiny_search.options.epochs = 5
    tiny_search.options.arms = arms = ["plain directions", "fresh optimizer", "switch after 8"]
    parent, *trials = tiny_search.left()
    assert (parent, trials) == (search.Trial("parent", 0, 5), [search.Trial(arm, 0, 5) for arm in arms])
    assert list(tiny_search.trunks(parent)) == [1, 2]
    assert not any(map(tiny_search.ready, trials))
    for trial in (parent, *trials):
        tiny_search.finished(trial, run(tiny_search.job(trial)))
    assert tiny_search.left() == []
    whole, first, second, late = tiny_search.records.records
    assert (whole["arm"], whole["switch_epoch"], late["switch_epoch"]) == ("parent", None, 2)
    assert first["validation_after_switch"] == second["validation_after_switch"]
    assert first["trainable_params"] == second["trainable_params"] <= 120_000
    assert "test_accuracy" not in first
    assert first["compiled"] is False
    assert first["commit"] == whole["commit"]
    assert len(search.table(tiny_search.records.records).splitlines()) == 6


def test_a_trial_that_cannot_end_in_time_is_not_started_and_named(
    tiny_search: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    import planner_search as search
    from peers.pace import Taken

    tiny_search.options.arms, tiny_search.options.epochs = ["narrow", "taylor"], 60
    tiny_search.times.pace.learn("tiny", "narrow", Taken(100.0, 7.0))
    tiny_search.times.deadline = time.time() + 500
    narrow, parent, taylor = (search.Trial(arm, 0, 60) for arm in ("narrow", "parent", "taylor"))
    undone = tiny_search.do()
    assert (undone.late, undone.waiting, undone.failed) == ([narrow, parent], [taylor], [])
    assert f"2 runs are not started, for want of time:\n  {narrow}" in capsys.readouterr().out
    assert tiny_search.epochs_left(taylor) == 59  # the tiny parent's first epoch is another's
    tiny_search.times.deadline = time.time() + 600
    assert tiny_search.fits(narrow, [])


@pytest.mark.slow
def test_places_that_are_free_while_a_parent_trains_its_first_epochs_are_used(
    tiny_search: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_search.options.arms, tiny_search.options.epochs = ["taylor"], 2
    tiny_search.options.seeds, tiny_search.options.together = [0, 1], 2
    undone = tiny_search.do()
    assert not any((undone.late, undone.waiting, undone.failed))
    started = [line for line in capsys.readouterr().out.splitlines() if ": starts" in line]
    assert ["arm='parent', seed=0" in started[0], "arm='parent', seed=1" in started[1]] == [True, True]
    assert len(started) == 4


def test_a_trial_that_diverges_is_recorded_and_shown(
    tiny_search: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import planner_search as search
    from pcn.training.losses import Losses

    monkeypatch.setattr(Losses, "mean", lambda losses: math.nan)
    tiny_search.options.epochs, tiny_search.options.arms = 2, ["narrow"]
    (trial,) = tiny_search.left()
    attempt, job = tiny_search.work(trial)
    tiny_search.finished(trial, attempt(job))
    assert tiny_search.left() == []
    assert f"{trial}: diverged" in capsys.readouterr().out
    *_, row = search.table(tiny_search.records.records).splitlines()
    assert row == "| narrow | 2 | 1, 1 diverged |  |  |  |  |  |"


def test_the_results_of_the_search_lie_in_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    import planner_search as search
    from peers import RESULTS

    assert search.arguments().parse_args([]).results == RESULTS
    assert (RESULTS / search.RECORDS).is_file()
    with pytest.raises(SystemExit):  # before anything is trained for it
        search.arguments().parse_args(["--results", str(RESULTS / search.RECORDS)])
    assert "is a file: give a folder" in capsys.readouterr().err


def test_two_processes_record_a_trial_once(tiny_search: Any) -> None:
    import planner_search as search
    from records import Records

    other = search.Search(Records(tiny_search.records.path), tiny_search.options)
    for each, accuracy in ((tiny_search, 90.0), (other, 80.0)):
        measured = {**dict.fromkeys((*search.FIELDS, "epoch_seconds")), "validation_accuracy": accuracy}
        each.finished(search.Trial("taylor", 0), measured)
    assert [r["validation_accuracy"] for r in Records(tiny_search.records.path).records] == [90.0]
    assert other.recorded(search.Trial("taylor", 0))


def test_trunks_say_how_they_were_trained_in_their_names(tiny_search: Any) -> None:
    import planner_search as search

    trial = search.Trial("taylor", 0)
    tiny_search.compiled = lambda trial: True
    compiled = tiny_search.trunk(trial), tiny_search.folder(trial, 5)
    tiny_search.compiled = lambda trial: False
    assert not set(compiled) & {tiny_search.trunk(trial), tiny_search.folder(trial, 5)}


def test_a_parent_that_is_known_is_trained_again_as_far_as_others_fork(tiny_search: Any) -> None:
    import planner_search as search

    tiny_search.options.arms = ["plain directions", "switch after 8"]
    parent = search.Trial("parent", 0)
    tiny_search.records.add({"arm": "parent", "seed": 0, "epochs": 20})
    assert tiny_search.left()[0] == parent
    assert tiny_search.job(parent).settings.epochs == 8
    tiny_search.records.add({"arm": "switch after 8", "seed": 0, "epochs": 20})
    assert tiny_search.job(parent).settings.epochs == 1
    (trunk,) = tiny_search.trunks(parent).values()
    trunk.parent.mkdir(parents=True)
    trunk.touch()
    assert tiny_search.left() == [search.Trial("plain directions", 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arm",
    [
        "two cuts",
        "tuned, patterns chosen, hedged, two cuts",
        "basis trained to epoch 5",
        "batch statistics, precondition 1, whitened again every 3 epochs, taylor",
        "tuned, patterns by response, kernel rank 4, even ranks, four times the decay",
    ],
)
def test_a_network_that_changes_twice_can_be_stopped(tiny_search: Any, arm: str) -> None:
    import planner_search as search
    from peers.one_run import run

    tiny_search.options.epochs, tiny_search.options.arms = 13, [arm]
    whole = search.Trial(arm, 0, 13)
    tiny_search.finished(whole.parent, run(tiny_search.job(whole.parent)))
    job = tiny_search.job(whole)
    expected = run(dataclasses.replace(job, folder=job.folder.with_name("whole")))
    stops = 0
    while (found := run(dataclasses.replace(job, deadline=time.time() + 0.01 + 0.3 * stops))) is None:
        stops += 1
    assert stops >= 1
    ignored = {"switch_seconds", "epochs_trained", "epoch_seconds"}  # of the last process alone
    assert {k: v for k, v in found.items() if k not in ignored} == {
        k: v for k, v in expected.items() if k not in ignored
    }
    assert 110_000 < found["trainable_params"] <= 120_000


@pytest.mark.slow
def test_every_arm_of_the_search_trains(tiny_search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from peers.arms import ARMS
    from peers.one_run import run

    for name, arm in ARMS.items():
        if "rank_step" in arm:  # in a network that is a quarter as wide
            monkeypatch.setitem(ARMS, name, {**arm, "rank_step": arm["rank_step"] // 4})
    tiny_search.options.epochs = 13
    for trial in tiny_search.left():
        tiny_search.finished(trial, run(tiny_search.job(trial)))
    assert {record["arm"] for record in tiny_search.records.records} == set(tiny_search.options.arms)


@pytest.mark.slow
def test_every_arm_of_conv4_trains_to_its_size(tiny_search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from peers.arms import OF_CONV4
    from peers.one_run import run
    from peers.parents import PARENTS

    conv4 = PARENTS["conv4"]
    small = {"data": "benchmarks.generated_images:small_data", "data_options": {"size": 32}, "batch": 16}
    recipe = lambda *which: dataclasses.replace(conv4.recipe(*which), **small)  # noqa: E731
    monkeypatch.setitem(PARENTS, "conv4", dataclasses.replace(conv4, recipe=recipe))
    tiny_search.options.epochs, tiny_search.options.arms = 3, list(OF_CONV4)
    for trial in tiny_search.left():
        tiny_search.finished(trial, run(tiny_search.job(trial)))
    found = {record["arm"]: record for record in tiny_search.records.records}
    assert set(found) == set(OF_CONV4)
    sizes = {arm: record["trainable_params"] for arm, record in found.items()}
    assert sizes.pop("conv4") == 2_425_930
    assert all(0.95 * 101_810 < size < 1.05 * 101_810 for size in sizes.values())
    assert all(record["switch_epoch"] == 2 for arm, record in found.items() if arm not in ("conv4", "conv4, narrow"))


def test_the_search_compares_arms_with_a_narrower_network_over_as_many_epochs() -> None:
    import planner_search as search

    def trial(arm: str, seed: int, accuracy: float, flops: float, epochs: int = 20) -> dict[str, Any]:
        sizes = {"trainable_params": 1_094_154, "validation_after_switch": 50.0, "flops_per_sample": flops}
        switch = search.Trial(arm, seed, epochs).switch_epoch
        known = {"arm": arm, "seed": seed, "epochs": epochs, "switch_epoch": switch}
        return {**known, "validation_accuracy": accuracy, **sizes}

    narrow = [trial("narrow", 0, 90.0, 100.0), trial("narrow", 1, 90.4, 100.0), trial("narrow", 0, 92.0, 100.0, 60)]
    taylor = [trial("taylor", 0, 90.5, 200.0), trial("taylor", 1, 90.8, 200.0), trial("taylor", 0, 92.5, 200.0, 60)]
    head, _, *lines = search.table([*narrow, trial("parent", 0, 91.0, 400.0), *taylor]).splitlines()
    assert head.startswith("| arm | epochs |")
    assert lines == [
        "| parent | 20 | 1 | 1,094,154 | 4.00 | 50.00 | 91.00 | +1.00 (one pair) |",
        "| narrow | 20 | 2 | 1,094,154 | 1.00 | 50.00 | 90.20 |  |",
        "| taylor | 20 | 2 | 1,094,154 | 2.20 | 50.00 | 90.65 | +0.45 (-0.19 to +1.09) |",
        "| narrow | 60 | 1 | 1,094,154 | 1.00 | 50.00 | 92.00 |  |",
        "| taylor | 60 | 1 | 1,094,154 |  | 50.00 | 92.50 | +0.50 (one pair) |",
    ]


def test_arms_are_compared_with_the_narrower_network_that_is_trained_as_they_are() -> None:
    from peers.search_table import table

    def trial(arm: str, accuracy: float) -> dict[str, Any]:
        known = {"arm": arm, "seed": 0, "epochs": 20, "switch_epoch": 2, "validation_after_switch": 50.0}
        return {**known, "validation_accuracy": accuracy, "trainable_params": 1, "flops_per_sample": 1.0}

    accuracies = {
        "narrow": 90.0,
        "narrow, tuned": 80.0,
        "narrow, decay 5e-4": 70.0,
        "taylor": 91.0,
        "parent, tuned": 82.0,
        "decay 5e-4": 73.0,
        "fresh optimizer, no decay": 94.0,
    }
    lines = table([trial(arm, accuracy) for arm, accuracy in accuracies.items()]).splitlines()[2:]
    shown = {cells[0]: cells[-1] for cells in ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)}
    assert shown == {
        **dict.fromkeys(("narrow", "narrow, tuned", "narrow, decay 5e-4"), ""),
        "taylor": "+1.00 (one pair)",
        "parent, tuned": "+2.00 (one pair)",
        "decay 5e-4": "+3.00 (one pair)",
        "fresh optimizer, no decay": "",
    }
