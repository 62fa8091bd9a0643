"""The benchmark of a step runs at tiny size, writes the records that it promises, and goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from pcn.fusion import fuse_
from pcn.nn import PCConv2d

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FIELDS = [
    *("network", "parent", "batch", "dtype", "device", "parent_ms", "parent_our_bn_ms", "narrow_ms", "pcn_ms", "ratio"),
    *("parent_peak_mib", "pcn_peak_mib", "parent_energy_j", "pcn_energy_j", "floor_ms"),
]


@pytest.fixture
def step_time(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step_time

    return step_time


@pytest.fixture
def run(step_time: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def inline(label: str, limit_s: float, work: Any, task: Any, *arguments: Any) -> Iterator[dict[str, Any]]:
        yield from task(*arguments)

    monkeypatch.setattr(step_time, "watched", inline)
    setting = step_time.Setting("cpu", True, tmp_path, ways=("eager",))  # to compile takes a minute
    return step_time.Run(setting, tmp_path / "step_time.json", seconds=100.0)


def test_records_have_the_promised_fields_and_are_kept(
    step_time: ModuleType, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.machine()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run.time([(step_time.TINY, 8)])
    (record,) = json.loads(run.results.path.read_text())["records"]
    assert list(record) == FIELDS
    assert record["ratio"] == pytest.approx(record["pcn_ms"] / record["parent_ms"])
    assert 0 < record["floor_ms"] < record["pcn_ms"]
    assert record["narrow_ms"] > 0
    assert record["parent_our_bn_ms"] > 0
    losses = [run.found["tiny-pcn", role, 8]["loss"] for role in ("pcn", "pcn_unfused")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    again = step_time.Results(run.results.path)
    assert again.has("tiny-pcn", 8)
    assert not again.has("tiny-pcn", 16)


def test_ways_of_compiling_are_those_of_the_compiler(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import step_time_jobs

    asked: dict[str, dict[str, bool]] = {}
    for way in step_time_jobs.WAYS["parent"]:
        monkeypatch.setattr(step_time_jobs, "compile_parts", lambda model, way=way, **how: asked.update({way: how}))
        step = object.__new__(step_time_jobs.CompiledStep)
        step.way, step.model = way, nn.Identity()
        step._compile()
    on = {way: {name for name, value in how.items() if value} for way, how in asked.items()}
    assert on == {"whole": {"whole"}, "blocks": set(), "combined": {"whole", "combined"}, "tuned": {"whole", "tuned"}}


def test_on_a_cpu_networks_run_compiled_and_as_they_are(step_time: ModuleType, run: Any) -> None:
    run.setting = step_time.Setting("cpu", True, run.setting.folder)
    roles = "parent", "pcn", "narrow", "pcn_unfused"
    assert [run._ways(step_time.TINY, role) for role in roles] == [["eager", "whole"]] * 4
    run.setting = replace(run.setting, ways=("whole",))
    assert run._ways(step_time.TINY, "parent") == ["whole"]
    run.setting = replace(run.setting, device="cuda", ways=("eager", "whole", "blocks"))
    assert run._ways(step_time.NETWORKS["wide_resnet20-pcn1"], "parent") == ["whole", "blocks"]


def test_nothing_starts_when_the_time_is_up(run: Any) -> None:
    run.deadline = 0.0
    with pytest.raises(SystemExit, match="is it free"):
        run.machine()
    assert not run.results.path.exists()


def test_kernels_are_listed_with_what_they_move(run: Any) -> None:
    run.machine()
    run.kernels()
    rows = {row["kernel"]: row for row in run.results.held["kernels"]}
    assert rows["bn_relu_project"]["mib"] == pytest.approx(1.25 * rows["batch_moments"]["mib"])
    assert all(row["share_of_copy"] > 0 and row["copy_us"] > 0 for row in rows.values())


def test_a_layer_with_its_batch_norm_moves_what_the_documentation_says(step_time: ModuleType) -> None:
    from step_time_floor import layer_elements, norm_elements

    layer = PCConv2d(64, 64, 3, rank=16, padding=1)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), layer)
    fuse_(model, torch.randn(2, 3, 6, 6))
    positions = 100
    of_norm = norm_elements(model[1], positions, given=True)
    assert of_norm + layer_elements(layer, (positions, 64), positions * 64) == 8.5 * 64 * positions
    assert norm_elements(model[1], positions, given=False) == of_norm + 64 * positions


def test_every_network_can_be_built(step_time: ModuleType) -> None:
    from step_time_networks import NETWORKS

    with torch.device("meta"):
        for network in NETWORKS.values():
            wide = network.build()
            if network.narrow is not None:
                assert sum(p.numel() for p in network.narrow().parameters()) < sum(p.numel() for p in wide.parameters())
    wider = NETWORKS["wide_resnet20x4-pcn1"]
    assert wider.config is not None
    assert wider.config.layers["stage1.*"].rank == 64


def test_the_documentation_names_the_rows_whose_energy_falls_less_than_their_time(step_time: ModuleType) -> None:
    from step_time_table import RESULTS

    page = (BENCHMARKS.parent / "docs" / "performance.md").read_text()
    records = json.loads(RESULTS.read_text())["records"]
    rows = []
    for record in records:
        time, energy = (record[f"pcn_{of}"] / record[f"parent_{of}"] for of in ("ms", "energy_j"))
        if energy > time:
            rows.append(f"| `{record['network']}` | {record['batch']} | {time:.3f} | {energy:.3f} |")
    table = page.split("### Energy beside time")[1].split("###")[0]
    assert {line for line in table.splitlines() if line.startswith("| `")} == set(rows)
    assert f"in {len(records) - len(rows)} of {len(records)} rows" in page


def test_peaks_are_below_the_parents_as_the_documentation_says(step_time: ModuleType) -> None:
    from step_time_table import RESULTS

    records = json.loads(RESULTS.read_text())["records"]
    assert all(record["pcn_peak_mib"] < record["parent_peak_mib"] for record in records)


def test_the_tables_in_the_documentation_are_those_of_the_results(step_time: ModuleType, tmp_path: Path) -> None:
    from step_time_table import CPU_RESULTS, NOTHING, tables

    page = (BENCHMARKS.parent / "docs" / "performance.md").read_text()
    assert tables() in page
    assert tables(CPU_RESULTS) in page
    assert tables(tmp_path / "none.json") == NOTHING
    row = {
        "kernel": "k",
        "width": 64,
        "rank": 16,
        "rows": 2048,
        "time_us": 1.25,
        "mib": 3.0,
        "share_of_copy": 0.61,
    }  # without a copy of its own size, as older ones are
    machine = {"device": "cpu", "torch": "2", "copy_bytes_per_s": 2e12}
    (tmp_path / "some.json").write_text(
        json.dumps({"machine": machine, "records": [], "unfused": [], "kernels": [row]})
    )
    assert "| k | 64 → 16 | 2,048 | 1.2 | 3 | 61 |  |  |" in tables(tmp_path / "some.json")


def test_ways_to_compile_stand_beside_one_another_where_one_is_tuned_or_not_compiled(step_time: ModuleType) -> None:
    from step_time_table import ways_table

    row = {"network": "wide", "role": "narrow", "batch": 8, "way": "blocks", "ms": 1.25}
    assert ways_table([row]) == ""
    assert "| wide, half the width | 8 | 1.25 | 1.00 |" in ways_table([row, row | {"way": "tuned", "ms": 1.0}])
    assert "| wide, half the width | 8 | 2.00 | 1.25 |" in ways_table([row, row | {"way": "eager", "ms": 2.0}])


def test_records_are_kept_as_soon_as_all_of_their_parts_are_there(
    step_time: ModuleType, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.machine()
    run.setting = replace(run.setting, roles=("parent", "pcn"))
    monkeypatch.setattr(type(run), "_together", lambda self: 16)
    report = {"way": "whole", "forms": {}, "compiled_s": 1.0, "ms": 2.0, "energy_j": None, "peak_mib": None}

    def in_turns(work: Any, jobs: Any, *limits: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        for at, (label, _) in enumerate(jobs):
            if at == 2:  # both parts of the first record have ended
                assert [record["batch"] for record in run.results.held["records"]] == [8]
            yield label, dict(report) if at < 3 else {"failed": "it ran out of memory"}

    monkeypatch.setattr(step_time, "in_turns", in_turns)
    run.time([(step_time.TINY, 8), (step_time.TINY, 16)])
    assert [record["batch"] for record in run.results.held["records"]] == [8]  # the other one lacks a part
