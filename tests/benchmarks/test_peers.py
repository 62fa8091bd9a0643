"""The comparison: every method trains at tiny size and meets the size, can be stopped, and is measured fairly."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pcn
from pcn.costs.count import count
from pcn.models import wide_resnet20

ROOT = Path(__file__).parents[2]
TARGET = 120_000  # the size of the tiny parent's PCNs
METHODS = (
    *("parent", "narrow", "narrow-planned", "pcn-from-scratch", "pcn-paper", "pcn-planner"),
    *("pcn-planner-random-basis", "svd-quarter", "svd-stable-rank", "torch-pruning"),
    *("pcn-planner-four-patterns", "pcn-planner-every-tap", "pcn-planner-at-once", "pcn-planner-sized"),
)
FIELDS = (
    *("method", "parent", "seed", "epochs", "trainable_params", "total_params", "flops_per_sample", "test_accuracy"),
    *("train_seconds", "energy_j", "timed_epochs", "last_epochs_s", "peak_mib"),
    *("target", "learning_rate", "weight_decay", "commit", "compiled", "fused", "validation_accuracy", "last_loss"),
)

GRID = {  # the record of the grid's only point
    "parent": "tiny",
    "seed": 0,
    "epochs": 2,
    "learning_rate": 0.05,
    "weight_decay": 1e-4,
    "validation_accuracy": 10.0,
}


@pytest.fixture
def comparison(tiny_parent: str, tmp_path: Path) -> Any:
    """A comparison of which nothing has been done."""
    from peers.comparison import Comparison
    from peers.results import Results

    options = argparse.Namespace(
        data=tmp_path,
        work=tmp_path / "work",
        solo=False,
        eager=True,
        fused=False,
        together=1,
        time_limit=math.inf,
        run_limit=60,
    )
    return Comparison(Results(tmp_path / "results"), options)


def a_run(method: str, **changes: Any) -> Any:
    from peers.order import Run

    return Run(method, "tiny", TARGET, **{"epochs": 2, "seed": 0} | changes)


def do(comparison: Any, method: str, **changes: Any) -> dict[str, Any]:
    """Do a run in this process, a final one at the grid's only point, and keep its record."""
    from peers.comparison import attempt

    run = a_run(method, **changes)
    if run.point is None:
        comparison.results.grid.records.append(GRID | {"method": method})
    assert comparison.ready(run, [])
    comparison.finished(run, attempt(comparison.job(run)))
    return comparison.results.find(run)


def needs_its_package(method: str) -> None:
    if method == "torch-pruning":
        pytest.importorskip("torch_pruning")


def test_the_methods_are_those_of_the_comparison() -> None:
    from peers.order import METHODS as THERE
    from peers.results import FIELDS as KEPT

    assert THERE == METHODS
    assert KEPT == FIELDS


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_to_the_end_and_meets_the_size(comparison: Any, method: str) -> None:
    needs_its_package(method)
    ours = None
    if method in ("narrow-planned", "pcn-from-scratch", "pcn-planner-random-basis"):
        ours = do(comparison, "pcn-planner")["trainable_params"]
    record = do(comparison, method)
    if method in ("pcn-from-scratch", "pcn-planner-random-basis"):
        assert record["trainable_params"] == ours  # the same plan
    assert tuple(record) == FIELDS
    assert (record["target"], record["learning_rate"], record["weight_decay"]) == (TARGET, 0.05, 1e-4)
    assert record["compiled"] is False
    if method not in ("parent", "pcn-paper"):  # which have no size to choose
        # One rank or one channel of every layer more or less is some percent of a network this small.
        assert record["trainable_params"] == pytest.approx(TARGET, rel=0.08)
    assert 0 <= record["test_accuracy"] <= 100
    assert record["flops_per_sample"] > 0
    assert record["total_params"] >= record["trainable_params"]
    assert record["train_seconds"] is record["energy_j"] is None
    assert not any((comparison.options.work / "final").iterdir())


@pytest.mark.parametrize("method", ["pcn-planner", "svd-quarter", "torch-pruning"])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(comparison: Any, method: str) -> None:
    from peers.one_run import run

    needs_its_package(method)
    do(comparison, "parent", epochs=3)
    whole = do(comparison, method, epochs=3)
    comparison.results.final.records.clear()
    job = comparison.job(a_run(method, epochs=3))
    stops = 0
    while (measured := run(dataclasses.replace(job, deadline=time.time() + 1e-3 + 0.3 * stops))) is None:
        stops += 1
    assert stops >= 1
    assert {name: measured[name] for name in measured.keys() & whole.keys()} == {
        name: whole[name] for name in measured.keys() & whole.keys()
    }


def test_runs_fork_from_one_parent_and_wait_for_it(comparison: Any) -> None:
    parent, ours = a_run("parent"), a_run("pcn-planner")
    do(comparison, "parent")
    trunk = comparison.trunk(parent)
    assert trunk.exists()
    do(comparison, "pcn-planner")
    assert comparison.trunk(ours) == trunk
    other = dataclasses.replace(ours, seed=1)
    assert comparison.ready(other, [])
    assert not comparison.ready(other, [dataclasses.replace(parent, seed=1)])
    assert comparison.trunk(a_run("pcn-planner")) is not None


def test_a_forked_run_equals_one_that_trains_the_first_epochs_itself(comparison: Any) -> None:
    from peers.one_run import run

    do(comparison, "parent")
    forked = do(comparison, "pcn-planner")
    comparison.results.final.records.clear()
    job = comparison.job(a_run("pcn-planner"))
    alone = run(dataclasses.replace(job, trunk=None, folder=job.folder.with_name("alone")))
    assert alone["test_accuracy"] == forked["test_accuracy"]
    assert alone["validation_after_switch"] is not None


@pytest.fixture
def at_commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Have the code be that of a commit."""
    from records import commit_at_start

    def at(commit: str) -> None:
        monkeypatch.setenv("PCN_COMMIT", commit)
        commit_at_start.cache_clear()

    yield at
    commit_at_start.cache_clear()


def test_a_forked_run_names_the_commit_of_its_first_epochs(comparison: Any, at_commit: Callable[[str], None]) -> None:
    at_commit("abc")
    do(comparison, "parent")
    at_commit("def")
    assert do(comparison, "pcn-planner")["commit"] == "abc+def"


@pytest.mark.parametrize("kind", ["compiled", "unknown"])
def test_a_trunk_of_another_or_unknown_kind_is_trained_anew(
    comparison: Any, kind: str, at_commit: Callable[[str], None]
) -> None:
    at_commit("abc")
    do(comparison, "parent")
    trunk = comparison.trunk(a_run("parent"))
    state = torch.load(trunk, weights_only=True)
    if kind == "compiled":
        state["compiled"] = True
    else:
        del state["commit"], state["compiled"]
    torch.save(state, trunk)
    at_commit("def")
    assert do(comparison, "pcn-planner")["commit"] == "def"
    anew = torch.load(trunk, weights_only=True)
    assert (anew["commit"], anew["compiled"]) == ("def", False)


def test_what_is_compiled_and_what_is_not_share_no_files(comparison: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from peers.comparison import Comparison

    do(comparison, "parent")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    options = argparse.Namespace(**{**vars(comparison.options), "eager": False})
    compiled, run = Comparison(comparison.results, options), a_run("parent")
    assert compiled.job(run).compiled
    assert compiled.trunk(run) != comparison.trunk(run)
    assert compiled.folder(run) != comparison.folder(run)


def test_no_compiler_finds_anything_of_earlier_runs() -> None:
    from peers.one_run import empty_compiler_cache

    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = [os.environ.get(name) for name in names]
    with empty_compiler_cache():
        folders = [Path(os.environ[name]) for name in names]
        assert len(set(folders)) == 2
        assert not any(folder.exists() and any(folder.iterdir()) for folder in folders)
        assert not any(str(folder) == earlier for folder, earlier in zip(folders, before, strict=True))
    assert [os.environ.get(name) for name in names] == before


def test_a_solo_pass_adds_times_and_reads_no_test_set(comparison: Any) -> None:
    from peers.one_run import run

    ours = a_run("pcn-planner")
    before = dict(do(comparison, "pcn-planner"))
    comparison.options.solo = True
    assert comparison.left([ours]) == [ours]
    job = comparison.job(ours)
    assert not job.reads_test
    assert not job.keeps_plan
    measured = run(job)
    assert measured["train_seconds"] > measured["switch_seconds"] > 0  # which is part of it
    comparison.finished(ours, measured)
    after = comparison.results.find(ours)
    times = {name: measured[name] for name in ("train_seconds", "last_epochs_s")}
    assert after == {**before, **times, "timed_epochs": 2}
    assert comparison.left([ours]) == []
    assert len(comparison.results.final.records) == 1


@pytest.mark.parametrize(("method", "timed"), [("pcn-planner", 6), ("narrow", 6)])
def test_a_solo_pass_trains_few_epochs_and_works_the_others_out(comparison: Any, method: str, timed: int) -> None:
    from peers.one_run import run

    known = {"method": method, "parent": "tiny", "seed": 0, "epochs": 50, "target": TARGET}
    ours = a_run(method, epochs=50)
    comparison.results.grid.records.append(GRID | {"method": method})
    comparison.options.solo = True
    assert comparison.left([ours]) == []  # what has no accuracy yet is left for later
    comparison.results.final.add({**known, "test_accuracy": 50.0, "train_seconds": None, "commit": "abc"})
    assert comparison.left([ours]) == [ours]
    job = comparison.job(ours)
    assert job.settings.epochs == timed
    short, whole = run(dataclasses.replace(job, whole_epochs=timed)), run(job)
    assert whole["timed_epochs"] == timed
    assert whole["train_seconds"] > 2 * (short["train_seconds"] - (short["switch_seconds"] or 0))
    comparison.finished(ours, whole)
    record = comparison.results.find(ours)
    assert (record["test_accuracy"], record["timed_epochs"]) == (50.0, timed)


def test_one_has_the_device_while_others_compile(tmp_path: Path) -> None:
    from threading import Thread

    from peers.device_turns import Turn

    ours, theirs, order = Turn(tmp_path / "turns"), Turn(tmp_path / "turns"), list[str]()

    def other() -> None:
        with theirs:
            order.append("theirs begins")
            time.sleep(0.2)
            order.append("theirs ends")

    with ours:
        thread = Thread(target=other)
        thread.start()
        time.sleep(0.1)
        order.append("ours gives up")
        with ours.given_up():
            thread.join()
        order.append("ours again")
    assert order == ["ours gives up", "theirs begins", "theirs ends", "ours again"]
    assert theirs.waited_s >= 0.1 > ours.waited_s


def test_a_solo_run_that_waits_for_its_turn_is_not_stopped(comparison: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event, Thread

    from pcn.training.run_folder import METRICS
    from peers.device_turns import Turn
    from peers.one_run import run

    do(comparison, "narrow")
    comparison.options.solo, comparison.times.deadline = True, time.time() + 0.5
    job, begun = comparison.job(a_run("narrow")), Event()
    metrics, seen = job.folder / METRICS, list[float]()

    def hold() -> None:
        with Turn(job.turns):
            begun.set()
            while len(set(seen)) < 3:  # a driver sees that the run is alive
                seen.extend([metrics.stat().st_mtime] if metrics.exists() else [])
                time.sleep(0.1)

    Thread(target=hold, daemon=True).start()
    assert begun.wait(60)
    assert run(job) is not None  # although the time is up long ago


def test_what_a_solo_run_waits_for_others_is_not_its_time(comparison: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event, Thread

    from pcn.training import trainer
    from peers.device_turns import Turn
    from peers.one_run import run

    do(comparison, "narrow")
    comparison.options.solo = True
    job, held_s, began = comparison.job(a_run("narrow")), 2.0, Event()

    def hold() -> None:
        with Turn(job.turns):
            began.set()
            time.sleep(held_s)

    def step_beside_others(*arguments: Any, step_for: Any = trainer.step_for) -> Any:
        Thread(target=hold).start()
        assert began.wait(60)  # the device is free while a step is made
        return step_for(*arguments)

    monkeypatch.setattr(trainer, "step_for", step_beside_others)
    start = time.perf_counter()
    measured = run(job)
    assert measured["train_seconds"] <= time.perf_counter() - start - held_s


def test_runs_are_timed_side_by_side(comparison: Any) -> None:
    runs = [a_run("narrow"), a_run("pcn-planner")]
    for run in runs:
        do(comparison, run.method)
    comparison.options.solo, comparison.options.together = True, 2
    assert comparison.left(runs) == runs
    assert comparison.do(runs) is None
    assert comparison.left(runs) == []


def test_times_of_a_whole_run_are_those_of_its_parts(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from peers.one_run import Job, whole_run

    settings: Any = SimpleNamespace(epochs=7)  # switched after the second
    job = Job("a run", settings, tmp_path, solo=True, whole_epochs=60)
    ends = [10.0, 20.0, 23.0, 26.0, 32.0, 35.0, 38.0]  # ten seconds each before the switch, three after, but for one
    seen = [{"event": "epoch", "epoch": n, "train_seconds": t, "energy_j": 100 * t} for n, t in enumerate(ends, 1)]
    result = {"train_seconds": 38.0, "setup_seconds": 5.0, "switch_seconds": 2.0, "energy_j": 3800.0}
    trainer: Any = SimpleNamespace(switch_j=700.0)
    whole_s = 2 * 10 + 58 * 3 + 3
    assert whole_run(job, trainer, result, seen) == pytest.approx((7 + whole_s, 700 + 100 * whole_s))
    unknown = [{**record, "energy_j": None} for record in seen]
    assert whole_run(job, trainer, {**result, "energy_j": None}, unknown)[1] is None
    whole = dataclasses.replace(job, whole_epochs=7)
    assert whole_run(whole, trainer, result, seen) == (45.0, 4500.0)


def test_the_grid_never_reads_the_test_set_and_the_best_point_wins(comparison: Any) -> None:
    from peers.comparison import attempt
    from peers.order import grid_runs

    (only,) = grid_runs("parent", "tiny")
    assert comparison.results.chosen("parent", "tiny") is None
    assert not comparison.ready(a_run("parent"), [])
    measured = attempt(comparison.job(only))
    assert measured["test_accuracy"] is None
    comparison.finished(only, measured)
    assert comparison.results.chosen("parent", "tiny") == only.point
    stored = json.loads((comparison.results.grid.path).read_text())["records"]
    assert "test_accuracy" not in stored[0]
    assert {"learning_rate", "weight_decay", "commit", "compiled"} <= stored[0].keys()


@pytest.fixture
def _diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loss is no number."""
    from pcn.training.losses import Losses

    monkeypatch.setattr(Losses, "mean", lambda losses: math.nan)


@pytest.mark.usefixtures("_diverges")
def test_a_run_that_diverges_is_recorded_without_an_accuracy(comparison: Any) -> None:
    from peers.comparison import attempt
    from peers.order import grid_runs

    (only,) = grid_runs("narrow", "tiny")
    comparison.finished(only, attempt(comparison.job(only)))
    assert comparison.results.find(only)["validation_accuracy"] is None
    record = do(comparison, "narrow")
    assert tuple(record) == FIELDS
    assert record["test_accuracy"] is record["trainable_params"] is None
    assert (record["target"], record["compiled"]) == (TARGET, False)
    assert comparison.left([a_run("narrow")]) == []
    comparison.options.solo = True
    assert comparison.left([a_run("narrow")]) == []  # it has no time of a whole run


def test_a_run_that_diverges_while_it_is_timed_again_has_failed(
    comparison: Any, request: pytest.FixtureRequest
) -> None:
    from pcn.errors import ConfigError
    from peers.comparison import attempt

    do(comparison, "narrow")
    comparison.options.solo = True
    request.getfixturevalue("_diverges")
    with pytest.raises(ConfigError, match="the loss is"):
        attempt(comparison.job(a_run("narrow")))


def test_a_record_names_the_commits_of_its_beginning_and_of_its_times(
    comparison: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peers.order import grid_runs
    from records import commit_at_start

    (only,) = grid_runs("narrow", "tiny")

    def at(commit: str, **changes: Any) -> str:
        monkeypatch.setenv("PCN_COMMIT", commit)
        commit_at_start.cache_clear()
        return do(comparison, "narrow", **changes)["commit"]

    assert at("abc", point=only.point) == "abc"
    assert at("abc") == "abc"
    comparison.options.solo = True
    assert at("def") == "abc+def"
    commit_at_start.cache_clear()


def test_the_grid_and_final_runs_have_plans_of_their_own(comparison: Any) -> None:
    from peers.order import grid_runs

    (ours,), (theirs,) = grid_runs("pcn-planner", "tiny"), grid_runs("narrow-planned", "tiny")
    plans = comparison.results.plans
    do(comparison, "pcn-planner", point=ours.point)
    assert ours in plans
    assert a_run("pcn-planner") not in plans
    assert comparison.job(theirs).settings.model_options["name"] in plans.known
    assert comparison.ready(theirs, [])
    do(comparison, "narrow-planned", point=theirs.point)
    assert comparison.needs(a_run("narrow-planned")) == [a_run("pcn-planner")]
    assert not comparison.ready(a_run("narrow-planned"), [])
    do(comparison, "pcn-planner")
    assert a_run("pcn-planner") in plans
    assert comparison.job(a_run("narrow-planned")).settings.model_options["name"] in plans.known
    assert set(json.loads(plans.path.read_text())) == set(plans.known)
    assert len(plans.known) == 2


def test_plans_that_two_processes_keep_are_both_there(tmp_path: Path, tiny_parent: str) -> None:
    from peers.plans import Plans

    first, second = Plans(tmp_path / "plans.json"), Plans(tmp_path / "plans.json")
    first.add(a_run("pcn-planner"), '{"a": 1}')
    second.add(a_run("pcn-planner", epochs=3), '{"a": 2}')
    assert sorted(plan["a"] for plan in Plans(first.path).known.values()) == [1, 2]


def test_a_plan_that_is_there_stays(tmp_path: Path, tiny_parent: str, capsys: pytest.CaptureFixture[str]) -> None:
    from peers.plans import Plans

    plans = Plans(tmp_path / "plans.json")
    plans.add(a_run("pcn-planner"), '{"a": 1}')
    plans.add(a_run("pcn-planner"), '{"a": 1}')
    assert not capsys.readouterr().out
    plans.add(a_run("pcn-planner"), '{"a": 2}')
    assert [*plans.known.values()] == [*Plans(plans.path).known.values()] == [{"a": 1}]
    assert "has made another plan than" in capsys.readouterr().out


def test_a_plan_that_is_lost_is_made_again_where_it_is_needed(comparison: Any, capsys: Any) -> None:
    from peers.results import Results

    ours, theirs = a_run("pcn-planner", epochs=4), a_run("narrow-planned", epochs=4)
    before = dict(do(comparison, "pcn-planner", epochs=4))
    comparison.results.grid.records.append(GRID | {"method": "narrow-planned"})
    assert comparison.left([ours, theirs]) == [theirs]
    first = json.loads(comparison.results.plans.path.read_text())
    comparison.results.plans.path.unlink()
    grid, comparison.results = comparison.results.grid, Results(comparison.results.plans.path.parent)
    comparison.results.grid = grid
    assert comparison.left([ours]) == []  # nobody needs it
    assert comparison.left([ours, theirs]) == [ours, theirs]
    assert not comparison.ready(theirs, [])
    work, job = comparison.work(ours)
    assert (job.settings.epochs, job.reads_test) == (2, False)  # up to the switch and no further
    comparison.finished(ours, work(job))
    assert comparison.times.seconds(theirs) is None  # the first epochs are the parent's and say nothing of the others
    assert comparison.left([ours, theirs]) == [theirs]
    assert comparison.ready(theirs, [])
    assert comparison.results.find(ours) == before
    assert json.loads(comparison.results.plans.path.read_text()) == first
    assert "seed 0: planned, 0 left" in capsys.readouterr().out


def test_runs_that_wait_for_what_is_not_there_are_named(comparison: Any) -> None:
    from processes import Undone

    theirs, ours = a_run("narrow-planned"), a_run("pcn-planner")
    comparison.results.grid.records.append(GRID | {"method": "narrow-planned"})
    said = comparison.do([theirs])
    assert said == f"1 runs wait for others that are not there, such as {theirs}, which waits for {ours}"
    assert comparison.complaint(Undone(waiting=[theirs], late=[ours])) is None
    comparison.finished(ours, None)  # its time was up
    assert comparison.complaint(Undone(waiting=[theirs])) is None
    assert comparison.complaint(Undone(failed=[ours])) == f"1 runs failed, such as {ours}"


def test_a_method_whose_package_is_missing_is_left_out_and_named(
    comparison: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from peers.methods import PACKAGES

    monkeypatch.setitem(PACKAGES, "narrow", "no_such_package")
    runs = [a_run("narrow", epochs=epochs) for epochs in range(2, 14)]
    assert comparison.do(runs) is None  # nothing has failed
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "12 runs are not started, as a package is missing: pip install no-such-package:"
    assert said[1:] == [*(f"  {run}" for run in runs[:10]), "  and 2 more"]


@pytest.mark.parametrize("there", [True, False])
def test_data_that_are_not_there_are_missed_once(comparison: Any, tmp_path: Path, there: bool) -> None:
    from peers.order import grid_runs

    comparison.options.data = tmp_path if there else tmp_path / "elsewhere"
    with pytest.raises(SystemExit, match=r"^--data: .* does not hold CIFAR-10"):
        comparison.do(grid_runs("narrow", "wide_resnet20"))


def test_a_plan_of_a_run_that_diverges_is_not_asked_for_again(comparison: Any, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("_diverges")
    do(comparison, "pcn-planner")
    assert a_run("pcn-planner") not in comparison.results.plans
    assert comparison.left([a_run("pcn-planner"), a_run("narrow-planned")]) == [a_run("narrow-planned")]


def test_what_cannot_end_in_time_is_not_started_and_named(comparison: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from peers.pace import Taken

    narrow, parent, short = a_run("narrow", epochs=60), a_run("parent", epochs=60), a_run("parent", epochs=3)
    for method in ("narrow", "parent"):
        comparison.results.grid.records.append(GRID | {"method": method})
    comparison.times.deadline = time.time() + 1000
    comparison.times.pace.learn("tiny", "narrow", Taken(100.0, 20.0))
    assert not comparison.fits(parent, [])  # as others of its parent: 1300 seconds
    assert comparison.fits(short, [])
    comparison.times.pace.learn("tiny", "parent", Taken(300.0, 10.0))
    assert comparison.fits(parent, [])  # as others of its method: 900
    assert not comparison.fits(narrow, [])
    assert comparison.do([narrow]) is None
    assert f"1 runs are not started, for want of time:\n  {narrow}" in capsys.readouterr().out


def test_what_ends_makes_room_for_what_goes_on(comparison: Any) -> None:
    from peers.comparison import Comparison
    from peers.pace import Taken

    for method in ("narrow", "parent"):
        comparison.results.grid.records.append(GRID | {"method": method})
    six = Comparison(comparison.results, argparse.Namespace(**{**vars(comparison.options), "together": 6}))
    six.times.deadline = time.time() + 1000
    six.times.pace.learn("tiny", "narrow", Taken(100.0, 10.0))  # with five others beside it
    long = a_run("narrow", epochs=182)  # 1920 seconds, of 320 of the whole machine
    assert six.fits(long, [])
    short = [a_run("parent", epochs=60, seed=seed) for seed in range(5)]  # 700 seconds, or 117
    for run in short:
        six.times.begin(run)
    assert six.fits(long, short)  # 903 seconds for all of them
    beside = [a_run("narrow", epochs=182, seed=seed) for seed in range(5)]
    for run in beside:
        six.times.begin(run)
    assert not six.fits(long, beside)  # 1920 for six of its kind
    assert not six.fits(a_run("narrow", epochs=200), [])  # 2100 seconds: not more than twice as fast by itself


def test_what_nothing_is_known_of_is_found_out_by_the_shortest(comparison: Any) -> None:
    short, long, waits = a_run("narrow"), a_run("narrow", epochs=60), a_run("parent", epochs=1)
    comparison.results.grid.records.append(GRID | {"method": "narrow"})
    comparison.to_do = {short, long, waits}  # the last of these is not ready
    assert comparison.fits(long, [])  # there is time for everything
    comparison.times.deadline = time.time() + 1000
    assert comparison.fits(short, [])
    assert not comparison.fits(long, [])
    comparison.times.begin(short)
    assert not comparison.fits(long, [short])
    assert comparison.fits(long, [])  # the short one has failed


def test_a_place_is_kept_for_final_runs_whose_grid_is_about_to_end(comparison: Any) -> None:
    from peers.order import Run, grid_runs
    from peers.pace import Taken

    *ended, last = grid_runs("pcn-planner", "wide_resnet20")
    for each in [*ended, *grid_runs("narrow", "wide_resnet20")]:
        comparison.results.add(each, {"validation_accuracy": 90.0, "commit": "abc", "compiled": False})
    final = [Run("pcn-planner", "wide_resnet20", 1_094_154, 60, seed) for seed in (10, 11)]
    long, beside = Run("narrow", "wide_resnet20", 473_802, 182, 10), Run("narrow", "wide_resnet20", 1_094_154, 60, 10)

    def begun(seconds_ago: float, run: Run = last) -> None:
        comparison.times.begin(run)
        then = comparison.times.begun[run].at - seconds_ago
        comparison.times.begun[run] = comparison.times.begun[run]._replace(at=then)

    begun(255)
    assert not comparison.holds(final[0], long, [last])  # nobody knows when it ends
    comparison.times.pace.learn("wide_resnet20", "pcn-planner", Taken(120.0, 7.0))
    comparison.times.pace.learn("wide_resnet20", "narrow", Taken(100.0, 5.0))
    assert all(comparison.holds(each, long, [last]) for each in final)  # five seconds before the end
    assert not comparison.holds(final[0], beside, [last])  # which is as much wanted
    assert not comparison.holds(long, final[0], [last])
    assert not comparison.holds(final[0], long, [])  # it has failed, and nobody does it
    comparison.times.deadline = time.time() + 500
    assert not comparison.holds(final[0], long, [last])  # there is no time for it
    comparison.times.deadline = math.inf
    begun(0)
    assert not comparison.holds(final[0], long, [last])  # 260 seconds, where the other takes 1010
    begun(260 + 255)
    assert not comparison.holds(final[0], long, [last])  # overdue: it may never end


def test_a_run_that_says_nothing_for_long_stands_still(comparison: Any, tmp_path: Path) -> None:
    from peers.pace import Taken

    ours, metrics, times = a_run("narrow"), tmp_path / "metrics.jsonl", comparison.times
    metrics.touch()
    os.utime(metrics, (0, 0))  # what an earlier process wrote says nothing
    comparison.results.grid.records.append(GRID | {"method": "narrow"})
    times.begin(ours)
    assert not times.stuck(ours, metrics)
    times.begun[ours] = times.begun[ours]._replace(at=time.time() - 250)
    assert not times.stuck(ours, metrics)  # nobody knows how long an epoch takes
    times.pace.learn("tiny", "narrow", Taken(100.0, 7.0))
    assert times.stuck(ours, metrics)
    os.utime(metrics)
    assert not times.stuck(ours, metrics)
    os.utime(metrics, (0, 0))
    for _ in range(5):
        times.pace.learn("tiny", "narrow", Taken(100.0, 60.0))
    assert not times.stuck(ours, metrics)  # epochs are long


def test_start_and_epochs_are_told_apart_and_known_to_the_next_driver(comparison: Any) -> None:
    from peers.comparison import Comparison

    ours = a_run("narrow", epochs=20)
    comparison.results.grid.records.append(GRID | {"method": "narrow"})
    comparison.times.begin(ours)
    begun = comparison.times.begun[ours]
    comparison.times.begun[ours] = begun._replace(at=begun.at - 260)
    comparison.times.learn(ours, {"epochs_trained": 20, "epoch_seconds": 7.0})
    again = Comparison(comparison.results, comparison.options)
    assert again.times.seconds(a_run("narrow", epochs=60)) == pytest.approx(120 + 60 * 7, abs=5)
    more = argparse.Namespace(**{**vars(comparison.options), "together": 6})
    assert Comparison(comparison.results, more).times.seconds(ours) is None  # side by side they are slower


def test_a_run_says_how_long_its_epochs_took(comparison: Any) -> None:
    from peers.one_run import run

    comparison.results.grid.records.append(GRID | {"method": "narrow"})
    began = time.time()
    measured = run(comparison.job(a_run("narrow", epochs=3)))
    assert measured["epochs_trained"] == 3
    assert 0 < measured["epoch_seconds"] < time.time() - began
    comparison.times.begin(a_run("narrow", epochs=3))
    comparison.finished(a_run("narrow", epochs=3), measured)
    usual = comparison.times.pace.usual("tiny", "narrow")
    assert usual.epoch_s == pytest.approx(measured["epoch_seconds"], abs=1e-3)


def test_what_is_left_of_a_run_is_less_than_the_whole(comparison: Any) -> None:
    from peers.one_run import run

    ours = a_run("pcn-planner", epochs=4)
    comparison.results.grid.records += [GRID | {"method": method} for method in ("parent", "pcn-planner")]
    assert comparison.epochs_left(ours) == 4
    parent = comparison.job(a_run("parent", epochs=4))
    assert run(dataclasses.replace(parent, deadline=time.time() + 1e-3)) is None  # after its first epoch
    assert comparison.epochs_left(a_run("parent", epochs=4)) == 3
    assert comparison.epochs_left(ours) == 3  # which the parent's first epochs are there for
    comparison.options.solo = True
    assert comparison.epochs_left(ours) == 4


def test_short_runs_are_not_compiled_and_reuse_their_process(comparison: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import peers.comparison
    from peers.order import Run
    from peers.parents import PARENTS
    from processes import Undone

    comparison.options.eager = False
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    conv4, tiny = Run("narrow", "conv4", 101_810, 20, 10), a_run("narrow")
    assert (PARENTS["conv4"].compiled, PARENTS["wide_resnet20"].compiled) == (False, True)
    assert (comparison.compiled(conv4), comparison.compiled(tiny)) == (False, True)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(peers.comparison, "run_each", lambda *args, **how: asked.update(how) or Undone())
    comparison.do([])
    assert (asked["reuse"](conv4), asked["reuse"](tiny)) == (True, False)
    comparison.options.solo = True
    assert not asked["reuse"](conv4)


@pytest.mark.parametrize("script", ["peers.py", "planner_search.py"])
def test_a_folder_is_the_same_however_it_is_spelt(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy

    arguments = runpy.run_path(str(ROOT / "benchmarks" / script))["arguments"]
    monkeypatch.chdir(tmp_path)

    def given(data: str, results: str) -> Any:
        return arguments().parse_args(["--data", data, "--results", results])

    one, other = given("cifar", "../results"), given(f"{tmp_path}/x/../cifar", str(tmp_path.parent / "results"))
    assert (one.data, one.results) == (other.data, other.results) == (tmp_path / "cifar", tmp_path.parent / "results")
    assert one.work.is_absolute()


def test_a_list_that_nobody_reads_to_its_end_ends_quietly(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "peers.py"), "--data", ".", "--list", "--results", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        said = listing.stderr.read()
    assert (listing.returncode, said) == (0, "")


def test_a_list_says_what_runs_wait_for(comparison: Any) -> None:
    from peers.order import grid_runs

    theirs, (first,) = a_run("pcn-from-scratch"), grid_runs("pcn-from-scratch", "tiny")
    assert comparison.described(theirs) == f"{theirs}, which waits for {first} and 1 more"
    assert comparison.described(a_run("narrow", point=first.point)) == str(a_run("narrow", point=first.point))


def test_the_best_point_of_a_grid_is_chosen_once_it_is_complete(tmp_path: Path) -> None:
    from peers.order import grid_runs
    from peers.results import Results

    results, runs = Results(tmp_path), grid_runs("narrow", "wide_resnet20")
    assert len(runs) == 6
    for number, run in enumerate(runs):
        assert results.chosen("narrow", "wide_resnet20") is None
        accuracy = None if number == 5 else 80.0 + (number == 3)
        results.add(run, {"validation_accuracy": accuracy, "commit": "abc", "compiled": True})
    assert results.chosen("narrow", "wide_resnet20") == runs[3].point
    assert Results(tmp_path).chosen("narrow", "wide_resnet20") == runs[3].point
    assert results.chosen("parent", "wide_resnet20") is None


def test_of_points_that_are_equally_good_a_method_takes_its_parents(tmp_path: Path) -> None:
    from peers.order import grid_runs
    from peers.results import Results

    results, known = Results(tmp_path), {"commit": "abc", "compiled": True}
    best = {"parent": (2,), "narrow": (1, 2), "pcn-planner": (1, 4)}
    for method, places in best.items():
        for number, run in enumerate(grid_runs(method, "wide_resnet20")):
            results.add(run, {"validation_accuracy": 80.0 + (number in places), **known})
    runs = grid_runs("narrow", "wide_resnet20")
    chosen = {method: results.chosen(method, "wide_resnet20") for method in best}
    assert chosen == {"parent": runs[2].point, "narrow": runs[2].point, "pcn-planner": runs[1].point}


def test_the_order_has_every_run_that_is_asked_for_once() -> None:
    from peers.order import in_order

    runs = in_order()
    assert len(runs) == len(set(runs))
    final = [run for run in runs if run.point is None]
    assert {run.seed for run in final} == {10, 11, 12, 13, 14}  # not those of the search, nor the grid's
    assert {run.seed for run in runs if run.point is not None} == {0}

    def seeds(method: str, target: int, epochs: int) -> int:
        return sum((run.method, run.target, run.epochs) == (method, target, epochs) for run in final)

    for target in (1_094_154, 473_802):
        for method in METHODS[1:10]:
            assert seeds(method, target, 60) == (5 if METHODS.index(method) < 6 else 3)
    assert seeds("parent", 1_094_154, 60) == 5
    assert [seeds(method, 1_094_154, 182) for method in ("parent", "narrow", "pcn-planner")] == [3, 3, 3]
    assert [seeds(method, 101_810, 20) for method in METHODS] == [5] * 10 + [0, 0, 5, 5]
    for method, short, long in zip(METHODS[10:], (5, 5, 3, 0), (3, 0, 0, 0), strict=True):
        assert [seeds(method, target, 60) for target in (1_094_154, 473_802)] == [short, 0]
        assert [seeds(method, target, 182) for target in (1_094_154, 473_802)] == [long, long]
    first = [run.method for run in final[:20]]
    assert set(first) == {"parent", "narrow", "pcn-planner", "pcn-paper"}
    assert {(run.target, run.epochs) for run in final[20:35]} == {(473_802, 182), (1_094_154, 182)}
    asked = [run for run in final if run.method not in METHODS[12:]]  # which came later, and are last
    assert final[: len(asked)] == asked
    conv4, last = (max(i for i, r in enumerate(asked) if r.target == size) for size in (101_810, 473_802))
    small = [i for i, r in enumerate(final) if (r.method, r.target) == ("svd-quarter", 473_802)]
    assert conv4 < min(small) <= max(small) <= last
    grid_of_parent = max(i for i, run in enumerate(runs) if run.point and run.method == "parent" and run.target > 2e5)
    assert grid_of_parent < runs.index(final[0])


@pytest.mark.parametrize("target", [1_094_154, 473_802])
def test_networks_of_suggested_widths_meet_the_size_in_eights_or_fours(target: int, tmp_path: Path) -> None:
    from peers.networks import planned_widths
    from peers.order import Run
    from peers.plans import Plans, plan_name

    torch.manual_seed(0)
    parent, run = wide_resnet20(), Run("pcn-planner", "wide_resnet20", target, 60, 0)
    stats = pcn.analyze(parent, [torch.randn(8, 3, 32, 32)])
    plans = Plans(tmp_path / "plans.json")
    plans.add(run, pcn.make_plan(parent, stats, pcn.Budget(params=target)).to_json())
    model = planned_widths("wide_resnet20", {}, str(plans.path), plan_name(run))
    assert count(model).trainable == pytest.approx(target, rel=0.03)
    assert not any(p.shape[0] % 4 for p in model.parameters() if p.ndim == 4)


def test_the_plain_networks_of_the_comparison_have_its_sizes() -> None:
    from peers.networks import narrow

    half = narrow("wide_resnet20", {}, 1_094_154)
    assert count(half) == count(wide_resnet20(width=32))
    assert {n: p.shape for n, p in half.named_parameters()} == {
        n: p.shape for n, p in wide_resnet20(width=32).named_parameters()
    }
    assert count(narrow("wide_resnet20", {}, 473_802)).trainable == pytest.approx(473_802, rel=0.02)
    assert count(narrow("conv4", {}, 101_810)).trainable == pytest.approx(101_810, rel=0.02)
    expected = 2 / (9 * half.stage1[0].conv1.out_channels)
    assert float(half.stage1[0].conv1.weight.detach().var()) == pytest.approx(expected, rel=0.1)
