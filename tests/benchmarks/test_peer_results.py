"""What is made of the comparison's runs: intervals, tables, figures; and the processes that do them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pcn.costs.count import flops_per_sample
from pcn.training.requests import build_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def record(method: str, seed: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    sizes = {"parent": 4_331_978, "narrow": 1_085_674}
    return {
        "method": method,
        "parent": "wide_resnet20",
        "seed": seed,
        "epochs": 60,
        "trainable_params": sizes.get(method, 1_094_154),
        "total_params": 1_223_114,
        "flops_per_sample": 3e8,
        "test_accuracy": accuracy,
        "train_seconds": None,
        "energy_j": None,
        "peak_mib": 1000.0,
    } | changes


def results_in(folder: Path, records: list[dict[str, Any]]) -> Any:
    from peers.results import Results

    found = {"hardware": {"gpu": "a GPU"}, "versions": {"torch": "2"}, "records": records}
    (folder / "peers.json").write_text(json.dumps(found))
    return Results(folder)


def test_intervals_are_those_of_students_t() -> None:
    from peers.intervals import paired_difference, quantile

    # Student's own example (1908): hours of sleep gained with two drugs; the paired interval is (0.70, 2.46).
    first = dict(enumerate([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]))
    second = dict(enumerate([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]))
    found = paired_difference(second, {**first, 99: 5.0})
    assert found.pairs == 10
    assert found.mean == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-4)
    assert found.clears_zero
    assert not paired_difference({0: 1.0, 1: -1.0}, {0: 0.0, 1: 0.0}).clears_zero
    assert quantile(1000) > 1.96


def test_the_quantiles_agree_with_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    from peers.intervals import QUANTILES

    assert pytest.approx([stats.t.ppf(0.975, n) for n in range(1, 31)], abs=1e-4) == list(QUANTILES)


def test_one_pair_says_nothing_of_the_spread() -> None:
    from peers.intervals import paired_difference

    assert str(paired_difference({0: 1.5}, {0: 1.0})) == "+0.50 (one pair)"
    assert not paired_difference({0: 1.5}, {0: 1.0}).clears_zero
    assert paired_difference({0: 1.5}, {1: 1.0}) is None


def test_a_table_ranks_methods_and_compares_pairs(tmp_path: Path) -> None:
    from peers.report import NOTHING, tables
    from peers.results import Results

    assert tables(Results(tmp_path / "empty")) == [NOTHING]
    ours = [record("pcn-planner", seed, 92.5 + seed / 10, train_seconds=60.0) for seed in (0, 1, 2)]
    narrow = [record("narrow", seed, 92.0 + seed / 10) for seed in (0, 1, 2)]
    other = [record("narrow", 0, 91.0, trainable_params=467_662), record("parent", 0, 93.0)]
    first, second = tables(results_in(tmp_path, [*narrow, *ours, *other]))
    rows = [line.split(" | ") for line in first.splitlines() if line.startswith("| ")][2:]
    assert [row[0].strip("| ") for row in rows] == ["parent", "pcn-planner", "narrow"]
    assert rows[2][5] == "92.10"
    assert rows[2][7] == "**+0.50** (+0.50 to +0.50)"
    assert rows[1][8] == "60"
    assert rows[2][8] == ""
    assert "473,802" in second
    assert "91.00" in second


def test_figures_are_drawn_from_the_results_alone_and_the_same_every_time(tmp_path: Path) -> None:
    figures = pytest.importorskip("peers.figures", reason="needs matplotlib", exc_type=ImportError)
    results = results_in(tmp_path, [record("parent", 0, 93.0), record("narrow", 0, 92.0), record("narrow", 1, 92.2)])
    for folder in ("one", "two"):
        assert list(figures.draw(results, tmp_path / folder)) == ["peers_wide_resnet20_60"]
    for ending in ("png", "svg"):
        first, second = (tmp_path / name / f"peers_wide_resnet20_60.{ending}" for name in ("one", "two"))
        assert first.read_bytes() == second.read_bytes()


def test_the_documentation_shows_the_results() -> None:
    import peers_report
    from peers.document import DOCUMENT, with_parts

    shown = DOCUMENT.read_text()
    assert with_parts(shown, peers_report.parts(BENCHMARKS / "results")) == shown


def test_a_part_of_the_documentation_is_made_anew(tmp_path: Path) -> None:
    from peers.document import comparison_part, with_parts

    part = comparison_part(results_in(tmp_path, [record("parent", 0, 93.0)]))
    assert "93.00" in part
    assert "figures/peers_wide_resnet20_60.svg" in part
    made = with_parts("before <!-- a -->\nold\n<!-- end of a --> after", {"a": part})
    assert made == f"before <!-- a -->\n\n{part}\n\n<!-- end of a --> after"
    with pytest.raises(ValueError, match="no part <!-- a -->"):
        with_parts("nothing", {"a": part})


def test_each_run_has_a_process_of_its_own_and_waits_for_others(capfd: pytest.CaptureFixture[str]) -> None:
    from peers.processes import run_each

    answers: dict[str, Any] = {}
    work = {"root": (math.sqrt, 4.0), "wrong": (math.sqrt, -1.0), "later": (abs, -1)}

    def ready(item: str, running: Any) -> bool:
        return item != "later" or "root" in answers

    failed = run_each(["later", "root", "wrong"], work.__getitem__, answers.__setitem__, together=2, ready=ready)
    assert answers == {"root": 2.0, "later": 1}
    assert failed == ["wrong"]
    assert "ValueError" in capfd.readouterr().err


def test_a_process_that_takes_too_long_is_ended() -> None:
    from peers.processes import run_each

    begin = time.time()
    assert run_each([600.0], lambda item: (time.sleep, item), pytest.fail, limit_s=0.5) == [600.0]
    assert time.time() - begin < 300


def test_nothing_starts_after_the_deadline() -> None:
    from peers.processes import run_each

    assert run_each([1.0], lambda item: (math.sqrt, item), pytest.fail, until=time.time() - 1) == []


def test_every_arm_of_the_search_can_be_set_up(tmp_path: Path) -> None:
    import planner_search as search
    from pcn.models import wide_resnet20
    from pcn.training.requests import requested

    assert next(iter(search.ARMS)) == "plain directions"
    names = [name for name, _ in wide_resnet20(width=4).named_modules()]
    for arm in search.ARMS:
        trial = search.Trial(arm, 3)
        settings = search.settings(trial, tmp_path)
        assert settings.seed == 3
        if trial.trunk is None:
            assert settings.model_options["target"] == search.TARGET
            continue
        assert int(settings.switch_at) == trial.trunk.epochs < settings.epochs
        assert search.settings(trial.trunk, tmp_path).weight_decay in (settings.weight_decay, 1e-4)
        asked = requested(settings)
        getattr(asked, "config", asked).check_names(names)


def test_a_plan_with_the_narrower_networks_operations_has_no_more_than_that_has() -> None:
    import planner_search as search

    narrow = build_model(search.settings(search.Trial("narrow", 0), Path("none")))
    assert flops_per_sample(narrow, torch.ones(1, 3, 32, 32)) == search.NARROW_FLOPS


def test_promising_arms_are_asked_for_as_a_group() -> None:
    import planner_search as search

    asked = search.arguments().parse_args(["--arms", "taylor", "promising", "plain directions", "narrow"]).arms
    first, *rest = search.named(asked)
    assert (first, rest[:-1], rest[-1]) == ("taylor", list(search.PROMISING), "plain directions")
    assert set(search.PROMISING) <= set(search.ARMS)


@pytest.fixture
def tiny_search(tiny_parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The search on a tiny network, with all arms on one seed."""
    import planner_search as search
    from records import Records

    for name, value in {"PARENT": "tiny", "TARGET": 120_000, "EPOCHS": 13, "SWITCH": 1}.items():
        monkeypatch.setattr(search, name, value)
    work = {"data": tmp_path, "work": tmp_path / "work", "eager": True}
    options = argparse.Namespace(arms=list(search.ARMS), seeds=[0], together=1, time_limit=math.inf, **work)
    return search.Search(Records(tmp_path / "search.json"), options)


def test_trials_of_the_search_fork_from_one_trunk(tiny_search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import planner_search as search
    from peers.one_run import run

    monkeypatch.setattr(search, "EPOCHS", 3)
    tiny_search.options.arms = arms = ["plain directions", "fresh optimizer"]
    trunk, *trials = tiny_search.left()
    assert (trunk, trials) == (search.Trunk(0, 1), [search.Trial(arm, 0) for arm in arms])
    for item in (trunk, *trials):
        tiny_search.finished(item, run(tiny_search.job(item)))
    assert tiny_search.left() == []
    first, second = tiny_search.records.records
    assert first["validation_after_switch"] == second["validation_after_switch"]
    assert first["trainable_params"] == second["trainable_params"] <= 120_000
    assert "test_accuracy" not in first
    assert len(search.table(tiny_search.records.records).splitlines()) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "arm",
    ["two cuts", "basis trained to epoch 5", "batch statistics, precondition 1, whitened again every 3 epochs, taylor"],
)
def test_a_network_that_changes_twice_can_be_stopped(tiny_search: Any, arm: str) -> None:
    import planner_search as search
    from peers.one_run import run

    whole = search.Trial(arm, 0)
    tiny_search.finished(whole.trunk, run(tiny_search.job(whole.trunk)))
    job = tiny_search.job(whole)
    expected = run(dataclasses.replace(job, folder=job.folder.with_name("whole")))
    stops = 0
    while (found := run(dataclasses.replace(job, deadline=time.time() + 0.01 + 0.3 * stops))) is None:
        stops += 1
    assert stops >= 1
    ignored = {"switch_seconds"}
    assert {k: v for k, v in found.items() if k not in ignored} == {
        k: v for k, v in expected.items() if k not in ignored
    }
    assert 110_000 < found["trainable_params"] <= 120_000


@pytest.mark.slow
def test_every_arm_of_the_search_trains(tiny_search: Any) -> None:
    import planner_search as search
    from peers.one_run import run

    for item in tiny_search.left():
        tiny_search.finished(item, run(tiny_search.job(item)))
    assert [record["arm"] for record in tiny_search.records.records] == list(search.ARMS)


def test_the_search_compares_arms_with_a_narrower_network() -> None:
    import planner_search as search

    def trial(arm: str, seed: int, accuracy: float) -> dict[str, Any]:
        sizes = {"trainable_params": 1_094_154, "validation_after_switch": 50.0}
        return {"arm": arm, "seed": seed, "validation_accuracy": accuracy, **sizes}

    narrow = [trial("narrow", 0, 90.0), trial("narrow", 1, 90.4)]
    lines = search.table([*narrow, trial("taylor", 0, 90.5), trial("taylor", 1, 90.8)]).splitlines()
    assert lines[2] == "| narrow | 2 | 1,094,154 | 50.00 | 90.20 |  |"
    assert lines[3].startswith("| taylor | 2 | 1,094,154 | 50.00 | 90.65 | +0.45 (-0.19 to +1.09) |")
    assert len(lines) == 4
