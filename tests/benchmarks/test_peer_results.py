"""What is made of the comparison's runs: intervals, tables, figures; and the processes that do them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
        "timed_epochs": None,
        "peak_mib": 1000.0,
        "target": 1_094_154,
    } | changes


def results_in(folder: Path, records: list[dict[str, Any]]) -> Any:
    from peers.results import Results

    found = {"hardware": {"gpu": "a GPU"}, "versions": {"torch": "2"}, "records": records}
    (folder / "peers.json").write_text(json.dumps(found))
    return Results(folder)


MEASURED = {
    "trainable_params": 1,
    "total_params": 1,
    "flops_per_sample": 1.0,
    "test_accuracy": 90.0,
    "validation_accuracy": 91.0,
    "last_loss": 0.1,
    "train_seconds": None,
    "energy_j": None,
    "timed_epochs": None,
    "last_epochs_s": None,
    "peak_mib": 5.0,
    "commit": "abc",
    "compiled": True,
    "fused": False,
}


def results_with_a_grid(folder: Path) -> Any:
    from peers.order import grid_runs
    from peers.results import Results

    results = Results(folder)
    for run in grid_runs("narrow", "conv4"):
        results.add(run, MEASURED)
    return results


def test_what_two_processes_measure_of_one_run_is_one_record(tmp_path: Path) -> None:
    from peers.order import Run, grid_runs
    from peers.results import Results

    results_with_a_grid(tmp_path)
    final, in_grid = Run("narrow", "conv4", 101_810, 20, 10), grid_runs("narrow", "conv4")[0]
    first, second = Results(tmp_path), Results(tmp_path)
    first.add(final, MEASURED)
    second.add(final, {**MEASURED, "test_accuracy": 80.0, "peak_mib": 7.0, "commit": "def"})
    second.add(in_grid, {**MEASURED, "validation_accuracy": 80.0})
    after = Results(tmp_path)
    assert [r["test_accuracy"] for r in after.final.records] == [90.0]
    assert (after.find(final)["peak_mib"], after.find(final)["commit"]) == (5.0, "abc")
    assert len(after.grid.records) == len(grid_runs("narrow", "conv4"))
    assert after.find(in_grid)["validation_accuracy"] == 91.0


def test_no_pass_over_a_run_loses_what_another_has_measured(tmp_path: Path) -> None:
    from peers.order import Run
    from peers.results import Results

    run = Run("narrow", "conv4", 101_810, 20, 10)
    results_with_a_grid(tmp_path).add(run, MEASURED)
    first, second, third = Results(tmp_path), Results(tmp_path), Results(tmp_path)
    first.add(run, {**MEASURED, "train_seconds": 10.0, "commit": "def"})
    second.add(run, {**MEASURED, "train_seconds": 11.0, "energy_j": 5.0, "commit": "fed"})
    third.add(run, {**MEASURED, "train_seconds": 12.0, "commit": "fed"})
    (found,) = Results(tmp_path).final.records
    assert found == third.find(run)
    assert (found["train_seconds"], found["energy_j"], found["commit"]) == (12.0, 5.0, "abc+def+fed")


def test_times_of_a_record_that_is_gone_are_refused(tmp_path: Path) -> None:
    from peers.order import Run

    run = Run("narrow", "conv4", 101_810, 20, 10)
    results = results_with_a_grid(tmp_path)
    results.add(run, MEASURED)
    results.final.path.write_text('{"records": []}')
    with pytest.raises(LookupError, match="does not hold the record any more"):
        results.add(run, {**MEASURED, "test_accuracy": None, "train_seconds": 10.0})
    assert results.final.path.read_text() == '{"records": []}'


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
    ours = [record("pcn-planner", seed, 92.5 + seed / 10) for seed in (0, 1, 2)]
    ours[1] |= {"train_seconds": 60.0, "last_epochs_s": [0.5, 0.7, 9.0]}
    narrow = [record("narrow", seed, 92.0 + seed / 10) for seed in (0, 1, 2)]
    other = [record("narrow", 0, 91.0, trainable_params=467_662, target=473_802), record("parent", 0, 93.0)]
    first, second = tables(results_in(tmp_path, [*narrow, *ours, *other]))
    rows = [line.split(" | ") for line in first.splitlines() if line.startswith("| ")][2:]
    assert [row[0].strip("| ") for row in rows] == ["parent", "pcn-planner", "narrow"]
    assert rows[2][5] == "92.10"
    assert rows[2][7:9] == ["", "**+0.50** (+0.50 to +0.50)"]
    assert rows[1][7:9] == ["**+0.50** (+0.50 to +0.50)", ""]
    assert rows[0][7] == "+1.00 (one pair)"
    assert rows[1][9:11] == ["60", "0.70"]
    assert rows[2][9:11] == ["", ""]
    assert "473,802" in second
    assert "91.00" in second


def test_a_peak_that_held_the_data_too_is_not_shown(tmp_path: Path) -> None:
    from peers.report import tables

    earlier = {name: value for name, value in record("parent", 0, 93.0).items() if name != "timed_epochs"}
    (shown,) = tables(results_in(tmp_path, [earlier, record("narrow", 0, 92.0)]))
    parent, narrow = (line.split(" | ") for line in shown.splitlines()[-2:])
    assert (parent[0], parent[-1].strip("| ")) == ("| parent", "")
    assert narrow[-1].strip("| ") == "1000"
    alone = record("narrow", 1, 92.0, timed_epochs=6, peak_mib=900.0)
    (shown,) = tables(results_in(tmp_path, [record("narrow", 0, 92.0), alone]))
    assert shown.splitlines()[-1].split(" | ")[-1].strip("| ") == "900"


def test_a_run_that_has_diverged_is_shown_and_counts_in_no_mean(tmp_path: Path) -> None:
    from peers.report import tables

    nothing = dict.fromkeys(("trainable_params", "total_params", "flops_per_sample", "peak_mib"))
    ours = [record("pcn-planner", seed, 92.5) for seed in (0, 1, 2)]
    narrow = [record("narrow", 0, 92.0), record("narrow", 1, 92.1), record("narrow", 2, None, **nothing)]
    lost = [record("svd-quarter", 0, None, **nothing)]
    (shown,) = tables(results_in(tmp_path, [*lost, *narrow, *ours]))
    rows = [line.strip("| ").split(" | ") for line in shown.splitlines() if line.startswith("| ")][2:]
    assert [row[:2] for row in rows] == [
        ["pcn-planner", "3"],
        ["narrow", "3, 1 diverged"],
        ["svd-quarter", "1, 1 diverged"],
    ]
    assert rows[1][5] == "92.05"
    assert rows[1][8] == "+0.45 (-0.19 to +1.09), 2 pairs"  # of three runs each
    assert not any(rows[2][2:])
    figures = pytest.importorskip("peers.figures", reason="needs matplotlib", exc_type=ImportError)
    assert list(figures.draw(results_in(tmp_path, [*lost, *narrow]), tmp_path)) == ["peers_wide_resnet20_60"]


def test_where_everything_has_diverged_there_is_a_table_and_no_figure(tmp_path: Path) -> None:
    from peers.document import comparison_part
    from peers.order import grid_runs

    nothing = dict.fromkeys(("trainable_params", "total_params", "flops_per_sample", "peak_mib"))
    results = results_in(tmp_path, [record("narrow", seed, None, **nothing) for seed in (10, 11)])
    for run in grid_runs("narrow", "wide_resnet20"):
        results.add(run, {**MEASURED, "validation_accuracy": None})
    part = comparison_part(results)
    assert "| narrow | 2, 2 diverged |" in part
    assert "| wide_resnet20 | narrow | 0.1 | 0.0001 |  |  | 6 |" in part
    assert "figures" not in part
    figures = pytest.importorskip("peers.figures", reason="needs matplotlib", exc_type=ImportError)
    assert list(figures.draw(results, tmp_path)) == []
    known = results_in(tmp_path, [*results.final.records, record("narrow", 12, 92.0, flops_per_sample=None)])
    assert list(figures.draw(known, tmp_path)) == ["peers_wide_resnet20_60"]


def test_a_record_that_does_not_say_its_size_belongs_to_none(tmp_path: Path) -> None:
    from peers.order import Run
    from peers.report import tables

    unsized = {name: value for name, value in record("narrow", 10, 92.0).items() if name != "target"}
    results = results_in(tmp_path, [unsized, record("narrow", 11, 91.0)])
    assert results.find(Run("narrow", "wide_resnet20", 1_094_154, 60, 10)) is None
    assert "| narrow | 1 |" in tables(results)[0]
    figures = pytest.importorskip("peers.figures", reason="needs matplotlib", exc_type=ImportError)
    assert list(figures.draw(results, tmp_path)) == ["peers_wide_resnet20_60"]
    assert list(figures.draw(results_in(tmp_path, [unsized]), tmp_path)) == []


def test_what_is_not_among_the_results_is_left_as_it_is_in_the_documentation(tmp_path: Path) -> None:
    import peers_report

    assert peers_report.parts(tmp_path) == {}
    results_in(tmp_path, [record("parent", 10, 93.0)])
    assert peers_report.parts(tmp_path).keys() == {"comparison", "short comparison"}


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
    from peers.document import PARTS, made_anew

    made = made_anew(peers_report.parts(BENCHMARKS / "results"))
    assert made.keys() == set(PARTS.values())
    for document, text in made.items():
        assert document.read_text() == text


def test_in_short_ours_stands_beside_what_a_person_would_do_instead(tmp_path: Path) -> None:
    from peers.report import short_tables

    others = [record("parent", 10, 93.0), record("narrow", 10, 92.0), record("pcn-from-scratch", 10, 91.0)]
    assert short_tables(results_in(tmp_path, others)) == ""  # nothing of ours to set it beside
    longer = [record(method, 10, 94.0, epochs=182) for method in ("parent", "pcn-planner", "narrow")]
    ours = [record("pcn-planner", 10, 92.5), record("pcn-planner", 11, 92.9), record("narrow", 11, 92.2)]
    title, _, table = short_tables(results_in(tmp_path, [*others, *ours, *longer])).partition("\n\n")
    assert title == "**wide_resnet20, 1,094,154 trained parameters, 60 epochs, 2 runs**"
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    assert {row[4] for row in cells} == {"1.22"}  # what is stored stands beside what is trained
    assert [row[:4] for row in cells] == [
        ["the wide network", "93.00", "-0.50 (one pair)", "4.33"],
        ["**PCN within a budget**", "92.70", "", "1.09"],
        ["narrower, from scratch", "92.10", "+0.60 (-0.67 to +1.87)", "1.09"],
    ]


def test_a_part_of_the_documentation_is_made_anew(tmp_path: Path) -> None:
    from peers.document import comparison_part, with_parts

    part = comparison_part(results_in(tmp_path, [record("parent", 0, 93.0)]))
    assert "93.00" in part
    assert "figures/peers_wide_resnet20_60.svg" in part
    made = with_parts("before <!-- a -->\nold\n<!-- end of a --> after", {"a": part})
    assert made == f"before <!-- a -->\n\n{part}\n\n<!-- end of a --> after"
    with pytest.raises(ValueError, match="no part <!-- a -->"):
        with_parts("nothing", {"a": part})


def test_operations_are_counted_again_where_a_plan_says_them(tmp_path: Path) -> None:
    from peers.recount import recount

    records = [record("pcn-paper", 10, 92.0), record("narrow", 10, 92.0), record("pcn-planner", 10, 93.0)]
    results = results_in(tmp_path, records)
    before = json.loads(results.final.path.read_text())
    assert [run.method for run in recount(results)] == ["pcn-paper"]  # there is no plan of the planner's
    held = json.loads(results.final.path.read_text())
    assert [each["flops_per_sample"] for each in held["records"]] == [372_642_816, 3e8, 3e8]
    held["records"][0]["flops_per_sample"] = 3e8
    assert held == before
    assert recount(results_in(tmp_path, [record("pcn-paper", 10, 92.0, flops_per_sample=372_642_816)])) == []
