"""``pcn train`` on classifiers of transformers, whose output is an object with logits in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pcn
from pcn.cli import main
from pcn.training import Settings, load_data
from pcn.training.compiling import Forwards, compile_parts
from pcn.training.requests import build_model
from pcn.training.step import Step
from stopped_runs import DEADLINES, train_to_the_end

pytest.importorskip("transformers")

VIT = {
    "architectures": "ViTForImageClassification",
    "image_size": 8,
    "patch_size": 2,
    "num_channels": 1,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "num_labels": 10,
}
RESNET = {
    "architectures": "ResNetForImageClassification",
    "num_channels": 1,
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "num_labels": 10,
}


@pytest.mark.parametrize(
    ("model", "options", "wish"),
    [
        ("hf:vit", VIT, {"rank": "0.5"}),
        ("hf:resnet", RESNET, {"params": 0.8, "worth": "divergence"}),
    ],
)
def test_a_run_switches_and_a_stopped_one_ends_the_same(
    tmp_path: Path, model: str, options: dict[str, Any], wish: dict[str, Any]
) -> None:
    settings = Settings(
        model=model, model_options=options, epochs=2, optimizer="adam", learning_rate=0.003, switch_at="1",
        calibration_samples=500, **wish,
    )  # fmt: skip
    ended = []
    for name, deadline in DEADLINES.items():
        result = train_to_the_end(tmp_path / name, settings, deadline)
        assert result["switch_epoch"] == 1
        ended.append((result["test_accuracy"], (tmp_path / name / "model" / "model.safetensors").read_bytes()))
    assert ended[0] == ended[1]
    loaded = pcn.load(build_model(settings), tmp_path / "whole" / "model")
    data = load_data(settings, torch.device("cpu"), torch.float32)
    assert loaded(next(data.test())[0]).logits.shape[1] == 10


def test_a_model_without_logits_is_refused_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(**changed: Any) -> str:
        options = [f"{key}={json.dumps(value)}" for key, value in {**VIT, **changed}.items()]
        assert main(["train", "--model", "hf:vit", "--out", str(tmp_path / "run"), "--model-options", *options]) == 1
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err

    message = said(architectures="ViTModel")
    assert message.startswith("pcn: error: hf:vit puts out BaseModelOutputWithPooling: give a classifier, as by model_")
    assert "hf:vit has 4 outputs, fewer than digits has classes" in said(num_labels=4)


def test_a_compiled_step_finds_the_logits() -> None:
    class Eager(Step):
        def _compile(self) -> Forwards:
            return compile_parts(self.model, backend="eager")

    batch = torch.randn(4, 1, 8, 8), torch.arange(4)
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = build_model(Settings(model="hf:resnet", model_options=RESNET))
        step = Eager(model, torch.optim.SGD(model.parameters(), lr=0.1), *batch, compiled=compiled)
        step(*batch)
        losses.append(float(step.loss_sum))
    assert losses[1] == pytest.approx(losses[0])
