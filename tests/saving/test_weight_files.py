"""Weights from a file: all of them or none, and no file runs code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import pcn
from pcn import FileError
from pcn.saving.weight_files import load_weights_
from small import Mlp, all_tensors, vectors


def state() -> dict[str, Tensor]:
    return {name: torch.randn_like(tensor) for name, tensor in Mlp().state_dict().items()}


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
def test_a_file_gives_every_tensor(suffix: str, tmp_path: Path) -> None:
    path, tensors = tmp_path / f"weights.{suffix}", state()
    save_file(tensors, path) if suffix == "safetensors" else torch.save(tensors, path)
    model = load_weights_(Mlp(), path)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())


def test_a_folder_that_pcn_save_wrote_gives_the_plan_too(tmp_path: Path) -> None:
    model = Mlp()
    pcn.compress_(model, [vectors()], pcn.PCNConfig(rank=4))
    pcn.save(model, tmp_path / "small")
    again = load_weights_(Mlp(), tmp_path / "small")
    assert pcn.get_plan(again) == pcn.get_plan(model)
    assert torch.equal(again(vectors(3)[:1] * 0 + 1), model(vectors(3)[:1] * 0 + 1))


def test_a_folder_of_a_run_without_a_switch_is_a_file(tmp_path: Path) -> None:
    tensors = state()
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(load_weights_(Mlp(), tmp_path).fc1.weight, tensors["fc1.weight"])


def test_a_tensor_that_is_shared_may_be_there_once(tmp_path: Path) -> None:
    model = Mlp()
    model.again = model.fc2
    tensors = state()
    save_file(tensors, tmp_path / "weights.safetensors")
    assert torch.equal(load_weights_(model, tmp_path / "weights.safetensors").again.weight, tensors["fc2.weight"])


def refused(model: nn.Module, path: Path) -> str:
    before = {name: tensor.clone() for name, tensor in all_tensors(model).items()}
    with pytest.raises(FileError) as error:
        load_weights_(model, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in all_tensors(model).items())
    assert "\n" not in str(error.value)
    return str(error.value)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    path, tensors = tmp_path / "weights.safetensors", state()
    save_file({name: tensor for name, tensor in tensors.items() if name != "fc3.bias"}, path)
    assert "lacks 1 tensors of the model ('fc3.bias' first)" in refused(Mlp(), path)
    save_file({f"module.{name}": tensor for name, tensor in tensors.items()}, path)
    assert "lacks 6 tensors of the model ('fc1.weight' first) and has 6 that the model lacks" in refused(Mlp(), path)
    save_file(tensors, path)
    assert "'fc1.weight' has shape (24, 12) there and (9, 12) in the model" in refused(Mlp(9), path)


class Harmful:
    def __reduce__(self) -> object:
        return os.mkdir, (str(Path.cwd() / "harm"),)


def test_a_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"fc1.weight": Harmful()}, tmp_path / "weights.pt")
    assert "holds more than tensors; save model.state_dict() alone" in refused(Mlp(), tmp_path / "weights.pt")
    assert not (tmp_path / "harm").exists()


def test_what_is_no_state_dict_is_said(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    assert f"there is no file {path}" in refused(Mlp(), path)
    torch.save({"epoch": 3, "state_dict": state()}, path)
    assert "holds a dict of 'epoch', 'state_dict', not a state dict" in refused(Mlp(), path)
    torch.save([1, 2], path)
    assert "holds list, not a state dict" in refused(Mlp(), path)
    (tmp_path / "weights.onnx").write_bytes(b"nothing")
    assert "weights are read from .safetensors" in refused(Mlp(), tmp_path / "weights.onnx")


@pytest.mark.parametrize("junk", [b"", b"hello", b"junk", b"\x80\x02junk", b"PK\x03\x04junk", bytes(range(256))])
def test_what_torch_did_not_save_is_told_from_what_holds_more_than_tensors(junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(junk)
    said = f"{path} is not a file that torch.save wrote, or not a whole one; save model.state_dict() alone"
    assert refused(Mlp(), path) == said


@pytest.mark.parametrize("archive", [True, False])
def test_files_of_every_version_of_torch_are_told(archive: bool, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(Mlp(), path, _use_new_zipfile_serialization=archive)
    assert "holds more than tensors" in refused(Mlp(), path)
    torch.save(state(), path, _use_new_zipfile_serialization=archive)
    path.write_bytes(path.read_bytes()[:-2000])
    assert "not a whole one" in refused(Mlp(), path)


def bare() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))


def test_a_bias_that_a_folded_layer_keeps_comes_along(tmp_path: Path) -> None:
    model, x = bare(), vectors(64) + 1
    pcn.compress_(model, [x], pcn.PCNConfig(rank=2))
    expected = model(x)
    assert pcn.fold_(model)
    save_file(model.state_dict(), tmp_path / "folded.safetensors")
    with pytest.warns(UserWarning, match="holds a bias for layers that the model has without one"):
        found = load_weights_(bare(), tmp_path / "folded.safetensors")
    torch.testing.assert_close(found(x), expected)
    save_file(model.state_dict() | {"1.bias": torch.ones(8)}, tmp_path / "other.safetensors")
    assert "has 1 that the model lacks ('1.bias' first)" in refused(bare(), tmp_path / "other.safetensors")
    save_file(model.state_dict() | {"2.bias": torch.ones(8)}, tmp_path / "other.safetensors")
    assert "holds the weights of another model: '2.bias' has shape (8,)" in refused(
        bare(), tmp_path / "other.safetensors"
    )
