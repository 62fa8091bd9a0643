"""What a report is made from: runs that ended, runs that did not, and statistics alone."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pcn
from pcn.cli import main
from pcn.report import of, of_run, render, write_report
from pcn.report.headline import of_run as numbers_of_run
from pcn.report.history import before_and_after, growth_before_and_after, history_of
from pcn.report.toml import same_run
from pcn.training import Settings, spectra
from pcn.training.requests import parse_rank, rank_text, requested
from pcn.training.spectra import spectra_of
from report.networks import varied

TRAIN = shlex.split(
    "train --model small_network:build --data digits --optimizer adam --learning-rate 0.003 --batch 64 --epochs 3"
    " --device cpu --threads 1"
)
LIMIT = 2_000_000


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run") / "switched", "--switch-at", "2", "--rank", "90%", "--exclude", "4")


@pytest.fixture(scope="module")
def unswitched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run") / "unswitched", "--measure-every", "2")


def trained(folder: Path, *flags: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[1] / "training")
        assert main([*TRAIN, *flags, "--json", "--out", str(folder)]) == 0
    return folder


def headline(report: dict[str, Any]) -> dict[str, tuple[float | None, float | None]]:
    return {row["label"]: (row["before"], row["after"]) for row in report["headline"]}


def test_a_run_writes_its_report(switched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (switched / "report.html").read_text(encoding="utf-8")
    assert len(page) < LIMIT
    assert page == render(of_run(switched))
    (switched / "report.html").unlink()
    assert main(["report", str(switched), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "report": str(switched / "report.html"),
        "bytes": len(page.encode()),
    }
    assert (switched / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(("joules", "known"), [(None, (None, None)), (50.0, (50.0, 50.0))])
def test_a_gpu_without_a_counter_is_told_of_and_a_cpu_needs_none(joules: float | None, known: tuple[Any, Any]) -> None:
    def told(peak: int | None) -> dict[str, tuple[Any, Any]]:
        epochs: list[dict[str, Any]] = [
            {
                "event": "epoch",
                "epoch": epoch,
                "step": 10 * epoch,
                "train_seconds": float(epoch),
                "energy_j": None if joules is None else joules * epoch,
                "peak_memory_bytes": peak,
            }
            for epoch in range(1, 7)
        ]
        metrics = [*epochs[:3], {"event": "switch", "epoch": 3, "step": 30}, *epochs[3:]]
        return {row["label"]: (row["before"], row["after"]) for row in numbers_of_run(None, metrics, None)}

    assert told(2**20)["Energy per epoch"] == known
    assert ("Energy per epoch" in told(None)) == (joules is not None)


def test_the_numbers_are_those_of_the_run(switched: Path) -> None:
    report, result = of_run(switched), json.loads((switched / "result.json").read_text())
    plan = pcn.Plan.from_json((switched / "plan.json").read_text())
    told = headline(report)
    assert told["Trained parameters"][1] == result["trainable_params"]
    assert told["Stored numbers"][1] == result["total_params"]
    assert told["FLOPs per sample"] == tuple(
        sum(getattr(layer, side) for layer in plan.layers.values()) for side in ("flops_before", "flops_after")
    )
    before, after = told["Trained parameters"]
    assert told["Training memory"][0] > 4 * 4 * before  # weights, gradients and Adam's two moments, 4 bytes each
    assert 4 * 4 * after < told["Training memory"][1] < told["Training memory"][0]
    assert all(side is not None and side > 0 for side in told["Time per epoch"])
    assert not {"Peak GPU memory", "Energy per epoch"} & told.keys()  # on a CPU
    assert report["accuracy"]["test"] == result["test_accuracy"]
    assert report["facts"][:2] == ["3 epochs", "switched after epoch 2"]
    assert [layer["kept"]["rank"] for layer in report["layers"]] == [layer.rank for layer in plan.layers.values()]
    assert {layer["name"]: layer["fixed"] for layer in report["layers"]}["4"] == "excluded by '4'"


def test_effective_dimensions_end_where_the_plan_begins(switched: Path) -> None:
    report = of_run(switched)
    assert report["history"]["rule"] == "90%"
    assert [epoch for epoch, _ in report["history"]["dimensions"]["8"]] == [1, 2]
    ranks = {layer["name"]: layer["kept"]["rank"] for layer in report["layers"]}
    assert report["history"]["dimensions"]["8"][-1][1] == ranks["8"]
    assert report["spectra_epoch"] == 2


def test_a_run_that_never_switched_can_still_be_explored(unswitched: Path) -> None:
    report = of_run(unswitched)
    assert report["planned"] is False
    assert report["facts"][1] == "not switched"
    assert [epoch for epoch, _ in report["history"]["dimensions"]["8"]] == [2]
    assert all(layer["activation"] and layer["fixed"] is None for layer in report["layers"])
    assert headline(report)["Trained parameters"][1] is None
    assert 'switch_at = "accuracy slows"' in report["toml"]
    assert len(render(report)) < LIMIT


def test_an_unfinished_run_is_told_as_far_as_it_came(switched: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(switched, folder)
    (folder / "result.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]) + lines[2][:20])  # cut off while it was written
    report = of_run(folder)
    assert report["facts"][:2] == ["unfinished: 1 of 3 epochs", "not switched"]
    assert report["planned"] is False  # a plan that the run has still to come to is not shown
    (folder / "metrics.jsonl").unlink()
    (folder / "spectra.json").unlink()
    (folder / "plan.json").unlink()
    report = of_run(folder)
    assert report["facts"][0] == "unfinished: 0 of 3 epochs"
    assert "measure_every" in report["missing"]
    render(report)


def test_what_is_no_run_is_refused_in_one_line(
    switched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path) -> str:
        assert main(["report", str(folder)]) == 1
        error = capsys.readouterr().err
        assert error.startswith("pcn: error: ")
        assert len(error.splitlines()) == 1
        return error

    assert "is not a folder" in refused(tmp_path / "nothing")
    assert "not the folder of a run" in refused(tmp_path)
    folder = tmp_path / "run"
    shutil.copytree(switched, folder)
    (folder / "spectra.json").write_text('{"format": "pcn-spectra", "version": 99}')
    assert "version" in refused(folder)
    (folder / "spectra.json").write_text("{")
    assert "spectra.json is damaged" in refused(folder)
    (folder / "spectra.json").unlink()
    whole = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(whole[:20])
    assert "plan.json is damaged: the plan is not JSON" in (said := refused(folder))
    assert "pcn.save" not in said
    (folder / "plan.json").write_text(whole)
    (folder / "metrics.jsonl").write_text('{"event": "epo')
    assert "metrics.jsonl holds no epoch of a run that has ended" in refused(folder)
    (folder / "settings.json").write_text('{"colour": "red"}')
    assert "there is no setting 'colour'" in refused(folder)


def test_spectra_answer_as_the_statistics_do() -> None:
    model, batches = varied()
    stats = pcn.analyze(model, batches)
    kept = spectra_of(stats)
    assert kept["layers"]["left"]["activation"] == kept["layers"]["right"]["activation"]
    for key, activation in kept["activations"].items():
        spectrum = stats.spectrum(key)
        known = spectrum.leading(spectrum.width)[0]
        assert activation["complete"]
        assert activation["values"] == [[value for value in group if value > 0] for group in known.tolist()]
        assert activation["totals"] == spectrum.total_variance.tolist()


def test_a_plan_s_own_directions_are_kept_of_a_wide_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra, "EIGH_SIZE", 100)
    model, batches = varied()
    stats = pcn.analyze(model, batches)
    assert len(spectra_of(stats)["activations"]["wide"]["values"][0]) == 96 * 16 // 8
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(layers={"wide": pcn.LayerRule(rank=230)}))
    found = spectra_of(stats, plan)["activations"]["wide"]
    assert len(found["values"][0]) == 199  # 200 samples have no more directions: the others are 0
    assert found["complete"]


def test_the_largest_report_stays_below_its_limit() -> None:
    widths = [600] * 100
    activations = {
        f"layer{n}": {
            "width": width, "groups": 1, "samples": 5000, "totals": [1.0], "complete": True,
            "values": [torch.rand(width, dtype=torch.float64).tolist()],
        }
        for n, width in enumerate(widths)
    }  # fmt: skip
    assert sum(widths) == spectra.MOST
    model, batches = varied()
    stats = pcn.analyze(model, batches)
    report = of(stats, pcn.make_plan(model, stats))
    report["activations"] = activations
    report["layers"] = [{**report["layers"][0], "name": f"stage.block.layer{n}"} for n in range(400)]
    assert 1_000_000 < len(render(report).encode()) < LIMIT


def test_statistics_alone_are_enough(tmp_path: Path) -> None:
    model, batches = varied()
    path = write_report(tmp_path / "new" / "report.html", of(pcn.analyze(model, batches), title="mine"))
    assert "<title>mine" in path.read_text(encoding="utf-8")
    (tmp_path / "file").write_text("")
    with pytest.raises(pcn.FileError, match="cannot write"):
        write_report(tmp_path / "file" / "report.html", of(pcn.analyze(model, batches)))


def test_time_is_that_of_whole_epochs_on_one_side_of_the_switch() -> None:
    def epoch(number: int, seconds: float | None) -> dict[str, Any]:
        values = {"validation_accuracy": 50.0, "train_seconds": seconds, "memory_bytes": 7}
        return {"event": "epoch", "epoch": number, "step": 10 * number, **values}

    switch = {"event": "switch", "epoch": 2, "step": 25, "validation_accuracy": 40.0}
    metrics = [epoch(1, 4.0), epoch(2, 8.0), switch, epoch(3, 11.0), epoch(4, 13.0), epoch(5, 15.0)]
    assert history_of(metrics)["switch"]["at"] == 2.5
    assert growth_before_and_after(metrics, "train_seconds") == (4.0, 2.0)
    assert growth_before_and_after(metrics[1:], "train_seconds") == (
        None,
        2.0,
    )  # where its first epoch began is unknown
    assert growth_before_and_after([epoch(1, None), epoch(2, 8.0)], "train_seconds") == (None, None)
    assert before_and_after(metrics, "memory_bytes") == (7, 7)
    assert before_and_after(metrics, "energy_j") == (None, None)


@pytest.mark.parametrize(("step", "said"), [(0, "before any training"), (5, "after epoch 0.5")])
def test_a_switch_in_the_first_epoch_has_nothing_before_it(step: int, said: str) -> None:
    model, batches = varied()
    switch = {"event": "switch", "epoch": 0, "step": step, "validation_accuracy": 40.0}
    epochs = [
        {"event": "epoch", "epoch": n, "step": 10 * n, "validation_accuracy": 50.0, "memory_bytes": 7 + n}
        for n in (1, 2)
    ]
    report = of(pcn.analyze(model, batches), metrics=[switch, *epochs])
    assert report["facts"] == ["2 epochs", f"switched {said}"]
    assert report["accuracy"]["before"] is None
    assert headline(report)["Training memory"] == (None, 9 if step else 8.5)


def test_epochs_in_which_weights_fade_are_on_neither_side() -> None:
    def epoch(number: int, seconds: float) -> dict[str, Any]:
        values = {"validation_accuracy": 50.0, "train_seconds": seconds}
        return {"event": "epoch", "epoch": number, "step": 10 * number, **values}

    fade = {"event": "fade", "epoch": 1, "step": 15}
    switch = {"event": "switch", "epoch": 2, "step": 30, "validation_accuracy": 40.0}
    metrics = [epoch(1, 4.0), fade, epoch(2, 14.0), epoch(3, 24.0), switch, epoch(4, 26.0)]
    assert growth_before_and_after(metrics, "train_seconds") == (4.0, 2.0)
    assert growth_before_and_after(metrics[:4], "train_seconds") == (4.0, None)  # not switched yet
    assert history_of(metrics)["switch"]["at"] == 3


@pytest.mark.parametrize("rank", [pcn.Threshold(0.1), pcn.Threshold(1e-7), pcn.ExplainedVariance(0.999), 64, 0.25])
def test_a_rule_is_written_as_it_is_read(rank: Any) -> None:
    assert parse_rank(rank_text(rank)) == rank


def test_the_same_run_can_be_asked_for_again(switched: Path) -> None:
    import tomllib

    settings = Settings.from_mapping(json.loads((switched / "settings.json").read_text()))
    again = Settings.from_mapping(tomllib.loads(of_run(switched)["toml"] + 'rank = "90%"\nexclude = ["4"]'))
    assert again == settings


@pytest.mark.parametrize("odd", [{"data_dir": "/data/\N{GRINNING FACE}\x7f"}, {"model_options": {"a": 2, "b": None}}])
def test_settings_of_any_text_are_written_as_toml(odd: dict[str, Any]) -> None:
    import tomllib

    written = same_run(Settings(**odd))
    expected = {key: {"a": 2} if key == "model_options" else value for key, value in odd.items()}
    assert tomllib.loads(written) == {**expected, "switch_at": "accuracy slows"}
    assert ("null for b" in written) == ("model_options" in odd)


def test_ranks_in_place_of_a_budget_are_preconditioned_as_it_did() -> None:
    def said(*layers: nn.Module) -> float | None:
        model, x = nn.Sequential(*layers), torch.randn(64, 3, 8, 8)
        stats = pcn.analyze(model, [x])
        plan = pcn.make_plan(model, stats, pcn.Budget(params=0.5))
        assert plan.transformed
        return of(stats, plan)["config"]["how"].get("precondition")

    normed = nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.BatchNorm2d(32)
    assert said(*normed) == 1.0
    assert said(*normed, nn.ReLU(), nn.Conv2d(32, 32, 3)) is None  # one layer is, and the other is not
    assert said(*normed[:3]) is None


@pytest.mark.parametrize(("optimizer", "said"), [("adam", "adam"), ("sgd", None), (None, None)])
def test_ranks_in_place_of_a_budget_have_coordinates_of_its_size(optimizer: str | None, said: str | None) -> None:
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64))
    stats = pcn.analyze(model, [torch.randn(256, 12)])
    plan = pcn.make_plan(model, stats, pcn.Budget(params=0.5, optimizer=optimizer))
    assert plan.transformed
    assert of(stats, plan)["config"]["how"].get("sized_for") == said


@pytest.mark.parametrize(("powers", "said"), [((1.0, 1.0), 1.0), ((1.0, 0.0), None)])
def test_a_run_within_a_budget_hands_its_preconditioning_on(
    switched: Path, tmp_path: Path, powers: tuple[float, ...], said: float | None
) -> None:
    import tomllib

    run = shutil.copytree(switched, tmp_path / "run")
    settings, plan = (json.loads((run / name).read_text()) for name in ("settings.json", "plan.json"))
    changed = [layer for layer in plan["layers"] if "rank" in layer]
    assert len(changed) > 1
    for number, layer in enumerate(changed):
        layer["precondition"] = powers[min(number, 1)]
    (run / "settings.json").write_text(json.dumps({**settings, "rank": None, "params": 0.5}))
    (run / "plan.json").write_text(json.dumps(plan))
    report = of_run(run)
    assert tomllib.loads(report["toml"]).get("precondition") == said
    assert report["config"]["how"].get("precondition") == said


@pytest.mark.parametrize(
    "asked",
    [
        {"flops": 0.5, "worth": "taylor"},
        {"params": 0.5, "two_sided": True},
        {"rank": "0.5", "output_rank": 0.5},
        {"layers": {"8": {"rank": 4, "output_rank": 8}}, "exclude": ("0",)},
        {"pcn": "conv4-pcn"},
    ],
)
def test_a_rank_can_take_the_place_of_whatever_a_run_asked_for(asked: dict[str, Any]) -> None:
    import tomllib

    kept = {"basis": "response", "precondition": 0.5, "fade_epochs": 1.5, "switch_at": "2", "seed": 3}
    again = Settings.from_mapping(tomllib.loads(same_run(Settings(**asked, **kept)) + 'rank = "90%"\n'))
    assert again == Settings(rank="90%", **kept)
    assert requested(again) == pcn.PCNConfig(rank=pcn.ExplainedVariance(0.9), basis="response", precondition=0.5)
