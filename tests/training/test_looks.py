"""A run that looks at its effective dimensions is the run that it would have been without."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import pcn
from pcn.cli import main
from pcn.training import Data, Settings, Trainer, load_data, meter, spectra

TRAIN = shlex.split(
    "train --model small_network:build --data digits --optimizer adam --learning-rate 0.003 --batch 64 --epochs 3"
    " --device cpu --threads 1 --augment crop-flip --json"
)


@pytest.fixture(autouse=True)
def _beside_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)


def train(folder: Path, *flags: str) -> Path:
    assert main([*TRAIN, *flags, "--out", str(folder)]) == 0
    return folder


def looks(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "dimensions"]


@pytest.mark.parametrize("at", ["2", "subspaces settle"])
def test_looking_changes_nothing(tmp_path: Path, at: str) -> None:
    flags = ("--switch-at", at, "--epochs", "4", "--measure-every")
    often, never = (train(tmp_path / every, *flags, every) for every in ("1", "0"))
    for name in ("plan.json", "spectra.json", "model/model.safetensors"):
        assert (often / name).read_bytes() == (never / name).read_bytes()
    switched = json.loads((often / "result.json").read_text())["switch_epoch"]
    assert [record["epoch"] for record in looks(often)] == list(range(1, switched + 1))
    assert looks(never) == []


@pytest.mark.parametrize("centred", [True, False])
def test_the_spectra_are_those_that_the_plan_was_made_from(tmp_path: Path, centred: bool) -> None:
    flags = ("--switch-at", "1", "--fade-epochs", "1", "--rank", "90%", *([] if centred else ["--no-centred"]))
    folder = train(tmp_path / "run", *flags)
    assert json.loads((folder / "spectra.json").read_text())["epoch"] == 1
    assert [record["epoch"] for record in looks(folder)] == [1]  # not while it fades
    plan = pcn.Plan.from_json((folder / "plan.json").read_text())
    ranks = {layer.name: layer.rank for layer in plan.transformed}
    assert {name: looks(folder)[0]["layers"][name] for name in ranks} == ranks
    kept = json.loads((folder / "spectra.json").read_text())
    for name, rank in ranks.items():
        activation = kept["activations"][kept["layers"][name]["activation"]]
        groups = zip(activation["values"], activation["totals"], strict=True)
        shares = [sum(values[:rank]) / total for values, total in groups]
        assert min(shares) >= 0.9


def test_tensorboard_gets_the_dimensions(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = train(tmp_path / "run", "--switch-at", "2", "--rank", "variance > 0.1", "--exclude", "4")
    events = accumulator.EventAccumulator(str(folder / "events")).Reload()
    seen = looks(folder)
    assert [record["rule"] for record in seen] == ["variance > 0.1"] * 2
    assert set(seen[0]["layers"]) == {"0", "8", "10"}
    for name in seen[0]["layers"]:
        scalars = [(e.step, e.value) for e in events.Scalars(f"effective_dimension/{name}")]
        assert scalars == [(record["step"], record["layers"][name]) for record in seen]


def test_tensorboard_keeps_what_was_logged_before_the_checkpoint(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from pcn.cli.screen import Screen
    from pcn.cli.train import _reporter

    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer: Any = SimpleNamespace(settings=Settings(), switch=None)

    def tell(*records: dict[str, Any]) -> None:
        reporter = _reporter(trainer, tmp_path, Screen(json=True))
        for record in records:
            reporter({"epoch": record["step"] // 14, **record})

    def epoch(step: int, loss: float) -> dict[str, Any]:
        return {"event": "epoch", "step": step, "loss": loss, "validation_accuracy": 1.0, "learning_rate": 0.1}

    tell(epoch(14, 4.0), epoch(28, 3.0), {"event": "dimensions", "step": 28, "layers": {"0": 5}}, epoch(42, 9.0))
    ready = {"event": "ready", "step": 28, "seconds": 1.0}  # a step is made anew, which is logged as of the checkpoint
    tell({"event": "resumed", "step": 28, "damaged": []}, ready, epoch(42, 2.0))
    events = accumulator.EventAccumulator(str(tmp_path / "events")).Reload()
    assert [(each.step, each.value) for each in events.Scalars("epoch/loss")] == [(14, 4.0), (28, 3.0), (42, 2.0)]
    assert [each.step for each in events.Scalars("effective_dimension/0")] == [28]


def test_a_run_without_a_switch_is_looked_at_too(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "--measure-every", "2")
    assert [record["epoch"] for record in looks(folder)] == [2]
    assert json.loads((folder / "spectra.json").read_text())["epoch"] == 2


class SlowToLookAt:
    """Data whose calibration samples take their time."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def calibration(self, *arguments: Any) -> Any:
        time.sleep(1)
        return self._data.calibration(*arguments)


def test_looking_is_no_training() -> None:
    settings = Settings(model="small_network:build", epochs=3, batch=400, switch_at="2", rank="0.25")
    trainer = Trainer(settings, SlowToLookAt(load_data(settings, torch.device("cpu"), torch.float32)))
    started = time.perf_counter()
    result = trainer.run()
    assert result is not None
    assert result["switch_seconds"] > 1  # what the switch looks at is its own
    assert time.perf_counter() - started - result["train_seconds"] > 2  # after the first epoch, and before the switch


@pytest.mark.parametrize("fade", [0.0, 0.5])
def test_training_up_to_a_switch_within_an_epoch_is_training(monkeypatch: pytest.MonkeyPatch, fade: float) -> None:
    monkeypatch.setattr(meter, "read_energy_j", lambda device: 100 * time.perf_counter())
    settings = Settings(
        model="small_network:build", epochs=2, batch=64, switch_at="step 10", rank="0.25", measure_every=0,
        fade_epochs=fade,
    )  # fmt: skip
    records: list[dict[str, Any]] = []
    data = SlowToLookAt(load_data(settings, torch.device("cpu"), torch.float32))
    trainer = Trainer(settings, data, tell=records.append, stepped=lambda: time.sleep(0.2))
    result = trainer.run()
    assert result is not None
    told = {record["event"]: record for record in records}
    assert told["switch"]["step"] == 10 + 14 * fade
    assert told["switch"]["fade_steps_left"] == 0
    assert 1 < result["switch_seconds"] < 3  # the one look, without the two seconds that the ten steps took
    assert 5.6 < result["train_seconds"] < 6.8  # all 28 steps, without the look
    assert result["energy_j"] == pytest.approx(100 * result["train_seconds"], rel=0.05)
    assert ("fade" in told) == bool(fade)


def test_the_directions_of_a_plan_that_fades_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra, "EIGH_SIZE", 100)  # as if the widest layer, of 256, were too wide to be solved whole
    folder = train(
        tmp_path / "run", "--switch-at", "1", "--fade-epochs", "1", "--layers", "8=40", "--measure-every", "0"
    )
    kept = json.loads((folder / "spectra.json").read_text())
    assert kept["epoch"] == 1
    assert len(kept["activations"][kept["layers"]["8"]["activation"]]["values"][0]) == 40  # and not 256 / 8


def test_what_cannot_be_measured_does_not_stop_a_run(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "--model", "small_network:without_layers", "--epochs", "1")
    assert "no layer to look at" in looks(folder)[0]["error"]
    assert not (folder / "spectra.json").exists()
    assert (folder / "report.html").exists()


def test_one_sample_to_look_at_does_not_stop_a_run(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "--epochs", "1", "--calibration-samples", "1")
    kept = json.loads((folder / "spectra.json").read_text())
    assert "fewer than two samples" in kept["left_alone"][list(kept["left_alone"])[-1]]
    assert (folder / "report.html").exists()


def test_a_negative_number_of_epochs_is_refused() -> None:
    with pytest.raises(pcn.ConfigError, match="measure_every=-1"):
        Settings(measure_every=-1)
