"""Models by name: one mechanism for ``pcn train`` and every other command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from pcn import ConfigError, FileError
from pcn.training import Settings
from pcn.training.named_models import build_named
from pcn.training.requests import build_model

BERT = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 20,
}


@pytest.fixture
def transformers() -> ModuleType:
    return pytest.importorskip("transformers")


def test_a_model_type_and_its_options(transformers: ModuleType) -> None:
    model = build_named("hf:bert", BERT)
    assert type(model) is transformers.BertModel
    assert model.config.hidden_size == 16
    assert len(model.encoder.layer) == 1


def test_settings_build_the_same(transformers: ModuleType) -> None:
    options = {**BERT, "architectures": "BertForMaskedLM"}
    model = build_model(Settings(model="hf:bert", model_options=options))
    assert type(model) is transformers.BertForMaskedLM


def test_a_folder_with_weights_a_folder_without_and_a_file(transformers: ModuleType, tmp_path: Path) -> None:
    model = build_named("hf:bert", {**BERT, "architectures": "BertForSequenceClassification"})
    model.save_pretrained(tmp_path)
    for source, same in ((tmp_path, True), (tmp_path / "config.json", False)):
        again = build_named(f"hf:{source}")
        assert type(again) is transformers.BertForSequenceClassification
        assert torch.equal(again.classifier.weight, model.classifier.weight) == same
    (tmp_path / "model.safetensors").unlink()
    assert not torch.equal(build_named(f"hf:{tmp_path}").classifier.weight, model.classifier.weight)


def test_weights_that_do_not_fit_are_refused_and_nothing_is_printed(
    transformers: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build_named("hf:bert", BERT).save_pretrained(tmp_path)
    capfd.readouterr()
    with pytest.raises(FileError, match=r"do not fit its config.json: 16 tensors .* 'encoder.layer.1"):
        build_named(f"hf:{tmp_path}", {"num_hidden_layers": 2})
    assert capfd.readouterr() == ("", "")


def test_what_does_not_exist_is_said(transformers: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hf download brt --local-dir DIR; did you mean 'bert'"):
        build_named("hf:brt")
    with pytest.raises(ConfigError, match="BertConfig has no 'hiden_size'; did you mean 'hidden_size'"):
        build_named("hf:bert", {"hiden_size": 3})
    with pytest.raises(ConfigError, match="transformers has no class 'BertForNothing'"):
        build_named("hf:bert", {"architectures": ["BertForNothing"]})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ConfigError, match="has no 'hiden_size'"):
        build_named(f"hf:{tmp_path}", {"hiden_size": 3})


@pytest.mark.parametrize(("name", "package"), [("hf:bert", "transformers"), ("timm:resnet50", "timm")])
def test_what_is_missing_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"{name!r} needs {package}, which is not installed: pip install {package}"):
        build_named(name)


def test_a_timm_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm itself cannot be installed beside this torch: a package with its three functions stands in."""
    timm = ModuleType("timm")
    timm.is_model = lambda name: name == "resnet50"
    timm.list_models = lambda: ["resnet50"]
    timm.create_model = lambda name, **options: nn.Linear(3, options["num_classes"])
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert build_named("timm:resnet50", {"num_classes": 7}).out_features == 7
    with pytest.raises(ConfigError, match="timm has no model 'resnet5'; did you mean 'resnet50'"):
        build_named("timm:resnet5")


def test_a_factory_must_make_a_module() -> None:
    with pytest.raises(ConfigError, match=r"made a dict, not a torch\.nn\.Module"):
        build_named("builtins:dict")
    with pytest.raises(ConfigError, match="':x': cannot import ''"):
        build_named(":x")
    with pytest.raises(ConfigError, match="'conv4' takes no model_options"):
        build_named("conv4", {"classes": 3})
