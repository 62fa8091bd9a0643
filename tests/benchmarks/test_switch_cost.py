"""The benchmark of the switch runs at tiny size, takes the parts apart without losing any, and outlives a stall."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

import pcn.rewriting.surgery

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = {"statistics_s", "tracing_s", "plan_s", "surgery_s", "optimizer_s", "check_s"}

# torch's own, of any block that is compiled by itself
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import switch

    return switch


def setting(switch: ModuleType, folder: Path) -> object:
    return switch.Setting("cpu", tiny=True, backend="eager", folder=folder)


@pytest.mark.slow
def test_a_run_reports_every_part(switch: ModuleType, tmp_path: Path) -> None:
    follow, network = pcn.rewriting.surgery.follow_, switch.NETWORKS["wide_resnet20"]
    found: dict[str, dict[str, float]] = {}
    for report in switch.train_and_switch(setting(switch, tmp_path), network, switch.DEFAULT):
        found |= report
    times = found["switch"]
    assert times.keys() > PARTS
    assert all(times[part] >= 0 for part in PARTS)
    assert times["total_s"] == pytest.approx(sum(times[part] for part in PARTS))
    assert times["in_epochs"]["total"] == pytest.approx(times["total_s"] / found["parent"]["epoch_s"])
    assert found["compiled"]["with_the_switch_s"] > times["total_s"]
    assert pcn.rewriting.surgery.follow_ is follow
    (again,) = switch.compile_again(setting(switch, tmp_path), network, switch.DEFAULT, found["plan"]["wide_resnet20"])
    compiled = again["compilation"][switch.DEFAULT.label]
    assert compiled["loss_of_first_steps"] == pytest.approx(compiled["loss_of_first_steps_eager"], rel=1e-3)
    torch.compiler.reset()


def test_a_process_that_takes_too_long_or_fails_is_told_of(switch: ModuleType, tmp_path: Path) -> None:
    arguments = setting(switch, tmp_path), switch.NETWORKS["conv4"], switch.DEFAULT
    (stalled,) = switch.reports(0.01, switch.train_and_switch, *arguments)
    assert "stopped" in stalled["failed"]
    (broken,) = switch.reports(60, switch.compile_again, *arguments, "not a plan")
    assert "ended with 1" in broken["failed"]


def test_results_are_merged(switch: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "results" / "switch.json"
    switch.save(out, "conv4", "cpu", {"torch": "2", "compilation": {"a": {"set_up_s": 1}}})
    switch.save(out, "conv4", "cpu", {"torch": "3", "compilation": {"b": {"set_up_s": 2}}})
    switch.save(out, "conv4", "cuda", {"torch": "2"})
    kept = {"torch": "3", "compilation": {"a": {"set_up_s": 1}, "b": {"set_up_s": 2}}}
    assert json.loads(out.read_text()) == {"conv4": {"cpu": kept, "cuda": {"torch": "2"}}}


def test_the_table_in_the_documentation_is_that_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import switch_table

    assert switch_table.table() in (BENCHMARKS.parent / "docs" / "training.md").read_text()
