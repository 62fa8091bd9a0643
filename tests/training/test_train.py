"""``pcn train``: settings from flags and TOML, the run's folder, the switch on the way, and what is refused."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pcn
from pcn.cli import main
from pcn.cli.app import build_parser
from pcn.nn import PCModule
from pcn.training import RunFolder, Settings, Trainer, load_data
from pcn.training.data import Contiguous, ImageData
from pcn.training.fitting import check_data_fits
from pcn.training.images import Images, Scale
from pcn.training.optimizers import learning_rate
from pcn.training.pictures import Pictures
from pcn.training.requests import analysis_options, build_model, parse_rank, pcn_config
from pcn.training.settings import FLAGS, read_toml
from pcn.training.streaming import ImageStream
from pcn.training.switch_time import fade_steps, parse_switch, switch_rule
from stopped_runs import DEADLINES, train_to_the_end

SMALL = shlex.split(
    "train --model small_network:build --data digits --optimizer adam --learning-rate 0.003 --batch 64 --epochs 3"
    " --rank 0.25 --device cpu"
)


@pytest.fixture(autouse=True)
def _beside_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)


def train(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str) -> dict[str, Any]:
    assert main([*SMALL, "--out", str(folder), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    assert main(["train", *arguments]) == code
    error = capsys.readouterr().err
    assert error.startswith("pcn: error: ")
    assert len(error.splitlines()) == 1
    return error


def metrics(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    result = train(capsys, folder, "--switch-at", "1")
    assert result["test_accuracy"] > 50
    assert result["switch_epoch"] == 1
    assert {path.name for path in folder.iterdir()} >= {
        "settings.json", "plan.json", "metrics.jsonl", "result.json", "model", "checkpoints", "events",
    }  # fmt: skip
    assert [line["epoch"] for line in metrics(folder, "epoch")] == [1, 2, 3]
    assert len(metrics(folder, "switch")) == 1
    model = build_model(Settings(model="small_network:build"))
    pcn.load(model, folder / "model")
    assert any(isinstance(module, PCModule) for module in model.modules())
    assert sum(p.numel() for p in model.parameters()) == result["trainable_params"]


def test_a_finished_run_is_not_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = train(capsys, tmp_path / "run", "--switch-at", "1")
    assert train(capsys, tmp_path / "run", "--switch-at", "1") == first
    assert len(metrics(tmp_path / "run", "epoch")) == 3


@pytest.mark.parametrize("carried", ["--carry-state", "--no-carry-state"])
@pytest.mark.parametrize("at", ["step 20", "accuracy slows", "subspaces settle"])
def test_every_rule_switches_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: str, carried: str
) -> None:
    result = train(capsys, tmp_path / "run", "--switch-at", at, carried, "--epochs", "6", "--recalibrate")
    assert result["switch_epoch"] is not None
    assert result["test_accuracy"] > 60
    if at == "step 20":
        assert metrics(tmp_path / "run", "switch")[0]["step"] == 20


@pytest.mark.parametrize("at", ["0", "step 0"])
@pytest.mark.parametrize("fade", [0.0, 1.0])
def test_a_run_may_switch_before_any_training(tmp_path: Path, at: str, fade: float) -> None:
    settings = Settings(
        model="small_network:build", batch=64, epochs=3, learning_rate=0.01, switch_at=at, fade_epochs=fade, rank="0.25"
    )  # fmt: skip
    whole, stopped = (train_to_the_end(tmp_path / name, settings, deadline) for name, deadline in DEADLINES.items())
    assert whole["test_accuracy"] == stopped["test_accuracy"] > 30
    assert whole["switch_epoch"] == 0
    for name in DEADLINES:
        (switch,) = metrics(tmp_path / name, "switch")
        assert switch["step"] == 14 * fade
        assert [line["epoch"] for line in metrics(tmp_path / name, "epoch")] == [1, 2, 3]
    assert main(["report", str(tmp_path / "whole")]) == 0


@pytest.mark.parametrize("at", ["accuracy slows", "subspaces settle"])
def test_a_rule_that_comes_true_with_the_last_epoch_comes_too_late(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: str
) -> None:
    flags = ("--switch-at", at, "--learning-rate", "0.01")
    longer = train(capsys, tmp_path / "longer", *flags, "--epochs", "6")
    epoch = longer["switch_epoch"]
    assert 1 < epoch < 6
    for _ in range(2):  # a run that has ended says it again
        assert main([*SMALL, *flags, "--epochs", str(epoch), "--out", str(tmp_path / "short"), "--json"]) == 0
        output = capsys.readouterr()
        assert output.err == (
            f"pcn: warning: the switch never came, and the model is whole: {at!r} did not come true before the last "
            f"epoch, {epoch}; train longer, or give --switch-at an epoch\n"
        )
        result = json.loads(output.out)
        assert result["switch_epoch"] is None
        assert result["trainable_params"] == metrics(tmp_path / "longer", "switch")[0]["trainable_before"]
    assert not (tmp_path / "short" / "plan.json").exists()


def test_a_run_that_ends_while_it_fades_switches_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--switch-at", "accuracy slows", "--fade-epochs", "2.9", "--epochs", "5")
    result = train(capsys, tmp_path / "run", *flags)
    assert result["switch_epoch"] == 5
    (fade,), (switch,) = (metrics(tmp_path / "run", event) for event in ("fade", "switch"))
    assert switch["fade_steps_left"] == fade["step"] + fade["steps"] - 5 * 14 > 0
    assert result["trainable_params"] == switch["trainable_after"] < switch["trainable_before"]
    assert result["validation_accuracy"] == switch["validation_accuracy"]
    pcn.load(build_model(Settings(model="small_network:build")), tmp_path / "run" / "model")
    assert train(capsys, tmp_path / "run", *flags) == result
    assert main([*SMALL, "--out", str(tmp_path / "shown"), *flags]) == 0
    shown = capsys.readouterr().out
    assert "what the cut takes away fades over 41 steps" in shown
    assert f"cut {switch['fade_steps_left']} steps before the fade was over" in shown


def test_a_run_that_is_stopped_while_it_fades_ends_as_one_that_never_was(tmp_path: Path) -> None:
    settings = Settings(
        model="small_network:build", batch=64, epochs=4, learning_rate=0.01, switch_at="1", fade_epochs=2, rank="0.25"
    )  # fmt: skip
    ended = []
    for name, deadline in DEADLINES.items():
        result = train_to_the_end(tmp_path / name, settings, deadline)
        told = [metrics(tmp_path / name, event)[0]["step"] for event in ("fade", "switch")]
        files = [(tmp_path / name / each).read_bytes() for each in ("plan.json", "spectra.json")]
        ended.append((told, files, result["test_accuracy"], result["fade_step"]))
    assert ended[0] == ended[1]
    assert ended[0][0] == [14, 42]


@pytest.mark.parametrize("patience", [1, 2])  # which is over when the fade begins, and in its middle
def test_a_fade_is_not_cut_short_where_patience_would_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], patience: int
) -> None:
    flags = ("--switch-at", "1", "--fade-epochs", "2.5", "--min-delta", "101", "--epochs", "8")
    result = train(capsys, tmp_path / "run", *flags, "--patience", str(patience))
    (fade,), (switch,) = (metrics(tmp_path / "run", event) for event in ("fade", "switch"))
    assert (fade["step"], switch["step"], switch["fade_steps_left"]) == (14, 14 + 35, 0)
    assert result["epoch"] == 4 + patience  # behind the first of the network that the switch has made


def test_a_toml_file_and_flags_say_the_same_and_flags_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'model = "small_network:build"\ndata = "digits"\noptimizer = "adam"\nlearning_rate = 0.003\nbatch = 64\n'
        'epochs = 9\nswitch_at = "1"\n'
        '[layers."8"]\nrank = 20\nsized_for = "adam"\n[layers."4"]\nrank = "variance > 0.01"\n'
    )
    assert main(["train", str(file), "--epochs", "2", "--out", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 2
    plan = pcn.Plan.from_json((tmp_path / "run" / "plan.json").read_text())
    assert (plan.layers["8"].rank, plan.layers["8"].sized_for, plan.layers["4"].sized_for) == (20, "adam", "sgd")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["epochs"] == 2
    assert settings["layers"]["4"] == {"rank": "variance > 0.01"}


def test_a_budget_and_the_best_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sum(p.numel() for p in build_model(Settings(model="small_network:build")).parameters())
    flags = ["--params", "0.5", "--switch-at", "1", "--keep-best", "--exclude", "10"]
    assert main([*[f for f in SMALL if f not in ("--rank", "0.25")], *flags, "--out", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["trainable_params"] <= before / 2
    accuracies = {line["epoch"]: line["validation_accuracy"] for line in metrics(tmp_path, "epoch")}
    assert result["validation_accuracy"] == max(accuracies[2], accuracies[3])  # epoch 1 was another network's
    assert accuracies[result["best_epoch"]] == result["validation_accuracy"]


def test_bases_of_outputs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rank", "none", "--output-rank", "0.25", "--switch-at", "1"]
    assert main([*[f for f in SMALL if f not in ("--rank", "0.25")], *flags, "--out", str(tmp_path), "--json"]) == 0
    capsys.readouterr()
    plan = pcn.Plan.from_json((tmp_path / "plan.json").read_text())
    assert plan.transformed
    assert all(layer.rank is None and layer.output_rank for layer in plan.transformed)
    assert (tmp_path / "report.html").exists()


def test_what_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--out", str(tmp_path / "run"), "--switch-at", "1"]) == 0
    shown = capsys.readouterr().out
    assert "epoch 3/3: loss" in shown
    assert "trained parameters, validation" in shown
    assert "left alone:" in shown  # the plan's table
    assert main([*SMALL, "--out", str(tmp_path / "run"), "--switch-at", "1"]) == 0
    assert "goes on after epoch 3" in capsys.readouterr().out


def test_errors_are_one_line_that_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*arguments: str) -> str:
        return refused(
            capsys, *arguments, "--out", str(tmp_path / "run")
        )  # one folder: a failed start does not take it

    assert "did you mean 'conv4'" in error("--model", "conv5")
    assert "cannot import 'nowhere'" in error("--model", "nowhere:build")
    assert "has no function or class 'made'" in error("--model", "small_network:made")
    assert "needs data_dir (--data-dir)" in error("--data", "cifar10")
    assert "no data set is called 'cifra'; did you mean 'cifar10'?\n" in error("--data", "cifra")
    assert "larger than the training set" in error(*SMALL[1:], "--switch-at", "1", "--batch", "1000")
    assert "does not take samples of digits, of shape (1, 8, 8)" in error("--model", "conv4")
    assert "leaves none of the 3 epochs (42 steps)" in error(*SMALL[1:], "--switch-at", "step 42")
    assert "with fade_epochs=2.5" in error(*SMALL[1:], "--switch-at", "step 7", "--fade-epochs", "2.5")
    assert "no layer is called 'nope*'" in error("--exclude", "nope*", "--switch-at", "1")
    assert "TypeError" in error("--model", "small_network:build", "--model-options", "depth=3")
    assert "the loss is nan" in error("--learning-rate", "1e30", "--batch", "64")


def test_what_no_model_could_be_trained_by_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*arguments: str) -> str:
        return refused(capsys, *arguments, "--out", str(tmp_path / "run"), code=2)

    assert "give 64, 0.25 of the width" in error("--rank", "lots", "--switch-at", "1")
    assert "1.5" in error("--rank", "1.5", "--switch-at", "1")
    assert "switch_at='soon'" in error("--switch-at", "soon")
    assert "cannot read" in error(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("epochs = = 3")
    assert "is not TOML" in error(str(tmp_path / "bad.toml"))
    (tmp_path / "rule.toml").write_text('switch_at = "1"\n[layers.8]\nsize_for = "sgd"')
    assert "layers.8 says 'size_for', which no rule does; did you mean 'sized_for'?" in error(
        str(tmp_path / "rule.toml")
    )
    (tmp_path / "odd.toml").write_text("epoch = 3")
    assert "did you mean 'epochs'" in error(str(tmp_path / "odd.toml"))
    assert "epochs=0" in error("--epochs", "0")
    assert "learning_rate=-1.0" in error("--learning-rate", "-1")
    assert "betas=(0.9,)" in error("--betas", "0.9")
    assert "rank='0.2', but switch_at is 'never': say when" in error("--rank", "0.2")
    assert "a budget chooses the ranks itself" in error("--rank", "0.2", "--params", "0.3", "--switch-at", "1")
    assert "leaves none of the 2 epochs to" in error("--epochs", "2", "--switch-at", "2")
    assert "with fade_epochs=1.5" in error("--epochs", "3", "--switch-at", "2", "--fade-epochs", "1.5")
    assert "worth='taylor' without a budget" in error("--worth", "taylor", "--switch-at", "1", "--rank", "0.2")
    assert "two_sided without a budget" in error("--two-sided", "--switch-at", "1")
    assert "rank_step=4 without a budget" in error("--rank-step", "4", "--switch-at", "1")
    assert "seed=-1" in error("--seed", "-1")
    assert "give both, or neither" in error("--drops", "1")
    assert "--model-options 'depth': give key=value" in error("--model-options", "depth")
    assert "--threads 0: give at least 1" in error("--threads", "0")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "asked",
    [
        {"params": 0.5}, {"layers": {"fc1": 4}}, {"exclude": "fc1"}, {"keep_outputs": 0}, {"fade_epochs": 1.0},
        {"train_basis": True}, {"keep_dropped": True}, {"basis": "balanced"}, {"precondition": 0.0}, {"kernel_rank": 2},
        {"recalibrate": True}, {"order": "project_first"}, {"skip_larger": False},
    ],
)  # fmt: skip
def test_what_only_a_switch_could_do_is_refused_without_one(asked: dict[str, Any]) -> None:
    with pytest.raises(pcn.ConfigError, match=rf"^{next(iter(asked))}=.*, but switch_at is 'never': say when"):
        switch_rule(Settings(**asked))
    switch_rule(Settings(**asked, switch_at="2"))


def test_a_fade_takes_a_step_at_least() -> None:
    assert [fade_steps(Settings(switch_at="1", fade_epochs=epochs), 9) for epochs in (0.0, 0.04, 0.5)] == [0, 1, 4]


def test_the_first_epoch_is_the_best_so_far_whatever_the_margin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(capsys, tmp_path / "run", "--switch-at", "1", "--epochs", "2", "--keep-best", "--min-delta", "120")
    assert result["best_accuracy"] is not None


def test_a_run_without_a_switch_may_say_everything_else() -> None:
    others = {"keep_best": True, "carry_state": False, "measure_every": 0, "analysis_mode": "train", "patience": 3}
    assert switch_rule(Settings(**others)) is None


def test_a_state_that_training_cannot_go_on_from_takes_no_checkpoints_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blows_up = "--optimizer sgd --learning-rate 1e30 --warmup-epochs 0.2 --warmup-factor 1e-32 --checkpoint-every 0.1"
    flags = [*SMALL[1:], *blows_up.split(), "--out", str(tmp_path), "--rank", "0.25", "--switch-at", "1"]
    assert "the loss is nan in epoch 1" in refused(capsys, *flags)
    files = list((tmp_path / "checkpoints").iterdir())
    assert files
    for file in files:
        weights = torch.load(file, weights_only=True)["model"]
        assert all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('learning_rate = "0.1"', "give a number"),
        ("learning_rate = true", "give a number"),
        ('seed = "a"', "give a whole number"),
        ("keep_best = 1", "give true or false"),
        ('params = "a third"', "give a number"),
        ("layers = 3", "give a table"),
    ],
)
def test_values_of_another_type_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    (tmp_path / "run.toml").write_text(line)
    assert message in refused(capsys, str(tmp_path / "run.toml"), code=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"momentum": -1.0}, "of at least 0 and at most 1$"),
        ({"momentum": 2.0}, "of at least 0 and at most 1$"),
        ({"rank_floor": 1.5, "params": 0.5}, "of at least 0.* and at most 1"),
        ({"rank_step": 0, "params": 0.5}, "a whole number of at least 1$"),
        ({"kernel_rank": 0, "switch_at": "3"}, "a whole number of at least 1$"),
        ({"epochs": 0}, "a whole number of at least 1$"),
        ({"patience": 0}, "a whole number of at least 1$"),
        ({"weight_decay": -0.1}, "of at least 0$"),
        ({"label_smoothing": 3.0}, "of at least 0 and at most 1$"),
        ({"learning_rate": math.inf}, "give a finite number$"),
        ({"seed": 10**400}, "from 0 to below"),
        ({"drop_factor": math.nan}, "give a finite number$"),
        ({"betas": (1.0, 0.9)}, "two numbers below 1"),
        ({"betas": (-0.5, 0.9)}, "of at least 0$"),
        ({"nesterov": True, "momentum": 0.0}, "a form of momentum"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(pcn.ConfigError, match=rf"^{next(iter(wrong))}.*{message}"):
        Settings(**wrong)


def test_numbers_may_stand_where_a_text_is_read() -> None:
    settings = Settings.from_mapping({"rank": 0.5, "switch_at": 2, "learning_rate": 1, "exclude": "fc"})
    assert (settings.rank, settings.switch_at, settings.learning_rate, settings.exclude) == ("0.5", "2", 1.0, ("fc",))


def test_names_of_the_paper_and_ranks() -> None:
    config = pcn_config(Settings(pcn="wide_resnet20-pcn1"))
    assert config.layers["stage1.*"].rank == 16
    assert pcn_config(Settings(pcn="conv4-pcn", order="kept_block", train_basis=True)).order == "kept_block"
    assert pcn_config(Settings()).rank == parse_rank("95%")  # as the help of --rank says
    assert pcn_config(Settings(output_rank=0.5)).rank == parse_rank("95%")
    assert pcn_config(Settings(output_rank=0.5, rank="none")).rank is None
    with pytest.raises(pcn.ConfigError, match="plain network"):
        pcn_config(Settings(pcn="conv4"))
    with pytest.raises(pcn.ConfigError, match="leave rank"):
        pcn_config(Settings(pcn="conv4-pcn", rank="4"))
    with pytest.raises(pcn.ConfigError, match="pcn and a budget are both given: pcn names ranks of the paper"):
        Settings(pcn="conv4-pcn", params=0.25)
    with pytest.raises(pcn.ConfigError, match=r"layers\.fc1"):
        pcn_config(Settings(layers={"fc1": {"ranks": 3}}))
    assert parse_rank(" 1e-3 ") == 1e-3
    assert parse_switch("0") == pcn.AfterEpoch(0)


@pytest.mark.parametrize(
    ("named", "model", "why"),
    [
        ("conv4", "pcn.demo.network:DigitsNetwork", " (no layer is called 'conv3')"),
        ("wide_resnet20", "resnet20", ""),  # its layers have the same names, and other sizes
    ],
)
def test_what_a_network_of_the_paper_keeps_is_for_that_network(named: str, model: str, why: str) -> None:
    pcn_of = next(name for name in pcn.models.names() if name.startswith(f"{named}-pcn"))
    said = f"pcn='{pcn_of}' is for model='{named}', not for '{model}'{why}: give that model, or leave pcn out"
    with pytest.raises(pcn.ConfigError, match=re.escape(said)):
        build_model(Settings(model=model, pcn=pcn_of))
    assert isinstance(build_model(Settings(model=named, pcn=pcn_of)), nn.Module)
    assert isinstance(build_model(Settings(model=f"pcn.models:{named}", pcn=pcn_of)), nn.Module)


@given(st.floats(0, 50), st.sampled_from(["constant", "drops", "cosine"]), st.floats(0, 5))
def test_the_rate_lies_between_0_and_the_one_given_and_never_rises_after_the_warm_up(
    done: float, schedule: str, warmup: float
) -> None:
    drops = (20, 40) if schedule == "drops" else ()
    settings = Settings(epochs=50, learning_rate=0.3, schedule=schedule, drops=drops, warmup_epochs=warmup)
    rate = learning_rate(settings, done)
    assert 0 <= rate <= 0.3 + 1e-12
    if done >= warmup:
        assert learning_rate(settings, done + 1) <= rate + 1e-12


def test_settings_survive_json() -> None:
    settings = Settings(schedule="drops", drops=(3.0, 5.0), layers={"fc*": {"rank": 4}}, exclude=("a", "b"))
    again = Settings.from_mapping(json.loads(settings.to_json()))
    assert again == settings
    assert settings.differences(Settings()) == ["schedule", "drops", "layers", "exclude"]


def test_the_same_settings_give_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        torch.manual_seed(hash(name) % 1000)  # whatever went on before
        train(capsys, tmp_path / name, "--switch-at", "1", "--augment", "crop-flip")
    files = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_how_the_layers_inputs_are_measured() -> None:
    def switched(**changes: object) -> pcn.Statistics:
        settings = Settings(
            model="small_network:build", learning_rate=0.01, batch=64, epochs=2, switch_at="1",
            layers={"4": {"rank": 4}, "8": {"rank": 8}}, calibration_samples=200, **changes,
        )  # fmt: skip
        trainer = Trainer(settings, load_data(settings, torch.device("cpu"), torch.float32))
        trainer.switch.keep_statistics = True
        assert trainer.run() is not None
        return trainer.switch.statistics

    usual = switched()
    assert (usual.samples("4"), usual.samples("8")) == (200 * 16, 200)
    part = switched(analysis_fraction=0.25, analysis_pool=2)
    assert (part.samples("4"), part.samples("8")) == (50 * 4, 50)
    assert not usual.gradients
    balanced = switched(basis="balanced")
    assert (balanced.gradients["4"].count, balanced.gradients["8"].count) == (200 * 16, 200)
    trained = switched(analysis_mode="train")  # dropout and the batches' own statistics
    assert not torch.allclose(trained.mean("8"), usual.mean("8"), rtol=1e-3)
    named = Settings(pcn="wide_resnet20-pcn0")
    assert analysis_options(named, pcn_config(named))["layers"] == list(pcn_config(named).layers)
    with pytest.raises(pcn.ConfigError, match="analysis_fraction=2"):
        Settings(analysis_fraction=2)
    with pytest.raises(pcn.ConfigError, match="analysis_pool=0"):
        Settings(analysis_pool=0)
    with pytest.raises(pcn.ConfigError, match="decoupled_decay"):
        Settings(optimizer="adam", decoupled_decay=True)


def test_a_run_trains_patterns_of_taps(tmp_path: Path) -> None:
    settings = Settings(
        model="small_network:residual", data="digits", epochs=3, batch=128, learning_rate=0.1, switch_at="1",
        rank="0.5", layers={"stage1.0.conv2": {"rank": 4, "kernel_rank": 2}}, kernel_rank=4, skip_larger=False,
    )  # fmt: skip
    with RunFolder(tmp_path, settings) as folder:
        trainer = Trainer(settings, load_data(settings, torch.device("cpu"), torch.float32), folder)
        assert trainer.run() is not None
    layers = dict(trainer.model.named_modules())
    assert layers["stage1.0.conv2"].kernel_rank == 2
    assert layers["stage1.0.conv1"].kernel_rank == 4
    with RunFolder(tmp_path, settings) as folder:  # taken up again where it ended
        again = Trainer(settings, load_data(settings, torch.device("cpu"), torch.float32), folder)
        again.run()
    for name, tensor in trainer.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], tensor)


def test_fused_steps_train_as_the_others_do(tmp_path: Path) -> None:
    from pcn.fusion.switch import everywhere

    settings = Settings(
        model="small_network:residual", data="digits", epochs=3, batch=128, learning_rate=0.1, switch_at="1", rank="0.5"
    )
    results, events = [], []
    for fused in (False, True):
        with RunFolder(tmp_path / str(fused), settings) as folder, everywhere():
            data = load_data(settings, torch.device("cpu"), torch.float32)
            trainer = Trainer(settings, data, folder, fused=fused)
            trainer.run()
        results.append([line["loss"] for line in metrics(folder.path, "epoch")])
        events.append(metrics(folder.path, "fused"))
        ready = [line["epoch"] for line in metrics(folder.path, "ready")]
        assert ready == ([0, 1] if fused else [])  # of the parent, and again after the switch
    assert results[1] == pytest.approx(results[0], rel=1e-3)
    assert events[0] == []
    assert [event["reason"] for event in events[1]] == [None]
    assert set(events[1][0]["forms"].values()) <= {"fused", "factored", "folded"}
    assert len(events[1][0]["forms"]) == sum(isinstance(module, PCModule) for module in trainer.model.modules()) > 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_steps_on_a_gpu_fold_what_is_fastest_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    on_gpu = shlex.split("--model small_network:residual --switch-at 1 --rank 0.75 --device cuda --compile")
    train(capsys, tmp_path / "run", *on_gpu)
    (event,) = metrics(tmp_path / "run", "fused")
    assert set(event["forms"].values()) <= {"factored", "folded"}


def test_fused_steps_without_kernels_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "need a CUDA device and Triton" in refused(
        capsys, *SMALL[1:], "--switch-at", "1", "--fuse", "--out", str(tmp_path / "run")
    )


def test_a_budget_of_memory_is_met_or_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranked = SMALL.index("--rank")
    flags = (*SMALL[1:ranked], *SMALL[ranked + 2 :], "--switch-at", "1", "--batch", "16")
    assert main(["train", *flags, "--memory-mib", "0.9", "--out", str(tmp_path / "run")]) == 0
    usage = pcn.Plan.from_json((tmp_path / "run" / "plan.json").read_text()).usage
    assert usage is not None
    assert usage.after.memory_bytes <= 0.9 * usage.before.memory_bytes
    said = refused(capsys, *flags, "--memory-mib", "0.01", "--out", str(tmp_path / "other"))
    assert "the least would be" in said
    assert not (tmp_path / "other" / "metrics.jsonl").exists()


def test_a_budget_of_operations_that_cannot_be_met_is_refused_before_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = [flag for flag in SMALL[1:] if flag not in ("--rank", "0.25")]
    said = refused(capsys, *flags, "--flops", "0.01", "--switch-at", "2", "--out", str(tmp_path / "run"))
    assert "FLOPs too small, even with every layer at its lowest rank" in said
    assert not (tmp_path / "run").exists()


def test_limits_are_the_same_run_however_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('params = 0.5\nflops = 4000\nstep_ms = "0.3 ms"\n')
    in_toml = Settings.from_mapping(read_toml(tmp_path / "run.toml"))
    as_flags = Settings(params="0.5", flops="4000", step_ms="0.3 ms")
    assert in_toml == as_flags
    again = Settings.from_mapping(json.loads(as_flags.to_json()))
    assert not again.differences(as_flags)
    assert Settings(params="1").params == 1
    assert isinstance(Settings(params="1").params, int)  # one parameter, where 1.0 is all of them
    assert isinstance(Settings(params="1.0").params, float)


def test_limits_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = [flag for flag in SMALL[1:] if flag not in ("--rank", "0.25")]
    flags += ["--switch-at", "1", "--batch", "16", "--out", str(tmp_path / "run")]
    assert "the budget of 1 parameters is" in refused(capsys, *flags, "--params", "1")
    assert "the budget of 0.010 MiB is" in refused(capsys, *flags, "--memory-mib", "0.01MiB")
    assert "memory_mib='0.5GiB': give a number of MiB" in refused(capsys, *flags, "--memory-mib", "0.5GiB", code=2)
    assert main(["train", *flags, "--params", "70%", "--epochs", "2"]) == 0
    plan = pcn.Plan.from_json((tmp_path / "run" / "plan.json").read_text())
    assert plan.transformed
    assert plan.trainable_after <= 0.7 * plan.trainable_before


def test_fewer_outputs_than_classes_are_refused_before_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ("--model", "small_network:linear", "--model-options", "outputs=8", "--epochs", "1", "--device", "cpu")
    said = refused(capsys, *flags, "--out", str(tmp_path / "runs" / "few"))
    assert "small_network:linear has 8 outputs, fewer than digits has classes (labels go up to 9)" in said
    assert not (tmp_path / "runs").exists()
    assert main(["train", *flags, "--model-options", "outputs=12", "--out", str(tmp_path / "more")]) == 0


@pytest.mark.parametrize("outputs", [3, 8])
def test_the_outputs_that_data_need_are_known_without_reading_all(outputs: int) -> None:
    """The first samples hold few classes, as in a data set in the order of its classes."""
    settings = Settings(model="small_network:linear", model_options={"outputs": outputs}, batch=4)
    pixels = torch.zeros(40, 8, 8, 1, dtype=torch.uint8)
    images = Images(pixels, torch.arange(40) // 10)
    whole = ImageData(images, images.take(torch.arange(10)), images, Scale.unit(images))
    pictures = Pictures(("",) * 40, tuple((torch.arange(40) // 10).tolist()))
    streamed = ImageStream(pictures, pictures, pictures, reader=None, scale=None)  # type: ignore[arg-type]
    assert [data.outputs_needed for data in (whole, Contiguous(whole), streamed)] == [4, 4, 4]
    trainer = Trainer(settings, whole)
    if outputs == 8:
        check_data_fits(trainer)
    else:
        with pytest.raises(pcn.ConfigError, match="build it with at least 4"):
            check_data_fits(trainer)


@pytest.mark.parametrize("labels", [torch.rand(40) * 9, torch.rand(40, 3), torch.full((40,), -100)])
def test_labels_that_number_no_classes_ask_for_no_outputs(labels: torch.Tensor) -> None:
    images = Images(torch.zeros(40, 8, 8, 1, dtype=torch.uint8), labels)
    data = ImageData(images, images, images, Scale.unit(images))
    check_data_fits(Trainer(Settings(model="small_network:linear", model_options={"outputs": 1}, batch=4), data))


@pytest.mark.parametrize(("outputs", "said"), [(3, r"a tensor of shape \(1, 3, 2\)"), (None, "tuple")])
def test_a_model_that_is_no_classifier_is_refused(outputs: int | None, said: str) -> None:
    settings = Settings(model="small_network:NoClassifier", model_options={"outputs": outputs}, batch=1)
    trainer = Trainer(settings, load_data(settings, torch.device("cpu"), torch.float32))
    with pytest.raises(pcn.ConfigError, match=rf"NoClassifier puts out {said}: give a classifier, whose output"):
        check_data_fits(trainer)


def test_a_batch_of_which_batch_norm_takes_no_statistics_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ("--model", "small_network:normalised", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path / "run"))
    said = refused(capsys, *flags, "--batch", "1")
    assert "a batch of 1 has one sample, of which batch norm takes no statistics: give a batch of 2 or more" in said
    assert not (tmp_path / "run").exists()
    assert main(["train", *flags, "--batch", "2", "--calibration-samples", "100"]) == 0


def test_checking_leaves_a_run_as_it_was() -> None:
    settings = Settings(model="small_network:build", batch=1)  # batch norm over many pixels, and dropout
    trainer = Trainer(settings, load_data(settings, torch.device("cpu"), torch.float32))
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    random = torch.get_rng_state()
    trainer.model.eval()
    check_data_fits(trainer)
    assert not any(module.training for module in trainer.model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_a_refused_run_says_nothing_else_and_leaves_no_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("new/run", "mine"):
        assert main([*SMALL, "--switch-at", "step 50", "--out", str(tmp_path / name)]) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert "leaves none of the 3 epochs" in output.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert not list((tmp_path / "mine").iterdir())
    assert main([*SMALL, "--switch-at", "1", "--epochs", "2", "--out", str(tmp_path / "mine")]) == 0
    assert capsys.readouterr().out.startswith("small_network:build on digits, 2 epochs on the CPU, in")


def test_a_run_with_a_measured_budget_goes_on_with_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pcn.training import looks

    settings = Settings(model="small_network:build", data="digits", epochs=2, batch=64, switch_at="1", memory_mib=0.95)
    data = load_data(settings, torch.device("cpu"), torch.float32)
    with RunFolder(tmp_path, settings) as folder:
        Trainer(settings, data, folder)
        measured = folder.costs()
        assert measured is not None
    monkeypatch.setattr(looks, "measure_first", lambda *arguments: pytest.fail("measured again"))
    with RunFolder(tmp_path, settings) as folder:
        again = Trainer(settings, data, folder)
        assert again.switch is not None
        assert again.switch.measured == measured


def test_a_model_that_looks_at_memory_trains_in_the_usual_layout() -> None:
    settings = Settings(model="small_network:Looking", epochs=2, batch=64, switch_at="1", rank="0.1", measure_every=0)
    trainer = Trainer(settings, load_data(settings, torch.device("cpu"), torch.float32))
    with pytest.warns(UserWarning, match="reshape takes what") as told:
        result = trainer.run()
    assert [each.filename for each in told] == [__file__]
    assert result is not None
    assert result["switch_epoch"] == 1


def test_the_rate_can_change_with_the_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--switch-at", "1", "--rank", "0.25", "--epochs", "3", "--learning-rate", "0.01")
    train(capsys, tmp_path / "run", *flags, "--switch-rate", "4")
    assert [each["learning_rate"] for each in metrics(tmp_path / "run", "epoch")] == [0.01, 0.04, 0.04]
    assert main([*SMALL, *flags, "--switch-rate", "0", "--out", str(tmp_path / "none")]) != 0
    assert "switch_rate=0.0: give a number above 0" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_costs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.html").mkdir()
    assert main([*SMALL, "--epochs", "2", "--switch-at", "1", "--out", str(tmp_path)]) == 1
    said = f"the run itself is complete: mend that, and have the page by pcn report {tmp_path}"
    assert said in capsys.readouterr().err
    (tmp_path / "report.html").rmdir()
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("name", ["result.json", "costs.json"])
def test_a_damaged_file_of_a_run_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{")
    said = rf"{name} is damaged .*: remove it, and start the same command again"
    with RunFolder(tmp_path, Settings()) as folder, pytest.raises(pcn.PCNError, match=said):
        folder.result() if name == "result.json" else folder.costs()


def test_a_folder_of_a_run_that_never_got_anywhere_may_be_deleted(tmp_path: Path) -> None:
    with RunFolder(tmp_path, Settings()) as folder:
        folder.begin()
    with pytest.raises(pcn.ConfigError, match="choose another folder, or delete this one, which holds neither"):
        RunFolder(tmp_path, Settings(seed=1))
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(pcn.ConfigError, match=r"choose another folder$"):
        RunFolder(tmp_path, Settings(seed=1))


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_are_no_settings_are_named(name: str) -> None:
    with pytest.raises(pcn.ConfigError, match=f"there is no setting '{name}'; it is a flag of pcn train, --{name}"):
        Settings.from_mapping({name: "cpu"})
    assert name in vars(build_parser().parse_args(["train"]))
