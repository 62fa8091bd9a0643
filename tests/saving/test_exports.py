"""What is exported computes what was trained, and what does not is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import pcn
from pcn.costs.count import count
from pcn.running.example import Example
from pcn.saving.exports import (
    TOLERANCE,
    Exported,
    ExportError,
    _compared,
    export_folded,
    export_onnx,
    export_program,
    export_state,
)
from small import Branching, ConvNet, conv_net, images, vectors

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def small_network() -> ConvNet:
    """A network with fewer directions and fewer outputs."""
    model = conv_net()
    stats = pcn.analyze(model, [images(64)])
    pcn.make_plan(model, stats, pcn.PCNConfig(rank=0.5, keep_outputs=0.75, skip_larger=False)).apply_(model, stats)
    return model


@pytest.mark.parametrize("form", ["factored", "dense"])
def test_onnxruntime_computes_what_the_model_computes_for_a_batch_of_any_size(
    form: pcn.rewriting.plain.PlainForm, tmp_path: Path
) -> None:
    model = small_network()
    done = export_onnx(model, Example.of(images(3)), tmp_path / "model.onnx", form, dynamic_batch=True)
    assert done.difference is not None
    assert done.difference <= TOLERANCE
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    batch = images(7)
    (result,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), model(batch).detach(), atol=1e-5, rtol=1e-4)


def test_a_program_is_read_back_and_takes_a_batch_of_any_size(tmp_path: Path) -> None:
    model = small_network()
    done = export_program(model, Example.of(images(3)), tmp_path / "model.pt2", "factored", dynamic_batch=True)
    again = torch.export.load(done.path).module()
    batch = images(7)
    torch.testing.assert_close(again(batch), model(batch), atol=1e-5, rtol=1e-4)


def test_the_folded_weights_fit_the_original_architecture(tmp_path: Path) -> None:
    model, original = small_network(), ConvNet().eval()
    done = export_folded(model, Example.of(images(3)), tmp_path / "folded.safetensors")
    assert done.notes == ["these have a bias that the original lacks: conv3"]
    state = load_file(done.path)
    original.conv3 = nn.Conv2d(12, 8, 3, groups=2)
    original.load_state_dict(state)
    batch = images(5)
    torch.testing.assert_close(original(batch), model(batch), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("form", ["factored", "dense"])
def test_the_plain_state_is_that_of_the_plain_model(form: pcn.rewriting.plain.PlainForm, tmp_path: Path) -> None:
    model = small_network()
    done = export_state(model, Example.of(images(3)), tmp_path / "plain.safetensors", form)
    plain = pcn.to_plain(model, form)
    assert load_file(done.path).keys() == plain.state_dict().keys()
    assert done.difference is not None
    assert done.stored == count(plain).total != count(model).total
    assert export_state(model.train(), None, tmp_path / "plain.safetensors", form).difference is None
    export_state(model, Example.of(images(3)), tmp_path / "plain.safetensors", form)
    assert model.training  # as it was


class OtherWhenExported(nn.Module):
    """Computes something else where it is exported, as code that asks whether it is may do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * (1.001 if torch.compiler.is_exporting() else 1.0)


@pytest.mark.parametrize("export", [export_onnx, export_program])
def test_an_export_that_computes_something_else_is_refused(export: object, tmp_path: Path) -> None:
    path = tmp_path / ("model.onnx" if export is export_onnx else "model.pt2")
    with pytest.raises(ExportError, match="away from the model"):
        export(OtherWhenExported(), Example.of(vectors(4)), path, "factored")
    assert not path.exists()


@pytest.mark.parametrize("export", [export_onnx, export_program])
def test_a_model_that_cannot_be_traced_is_one_line(export: object, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"torch\.\w+ cannot export Branching: [^\n]*$"):
        export(Branching(), Example.of(vectors(4)), tmp_path / "model", "factored")


def test_one_sample_does_not_say_which_size_may_vary(tmp_path: Path) -> None:
    with pytest.raises(pcn.ConfigError, match="at least 2 samples"):
        export_onnx(small_network(), Example.of(images(1)), tmp_path / "model.onnx", "factored", dynamic_batch=True)


def test_without_onnxruntime_the_file_is_written_and_said_to_be_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = small_network()
    done = export_onnx(model, Example.of(images(3)), tmp_path / "model.onnx", "factored")
    note = "not checked: onnxruntime is not installed: pip install onnxruntime"
    assert done == Exported(tmp_path / "model.onnx", count(pcn.to_plain(model)).total, None, [note])
    assert done.path.stat().st_size > 0


def test_without_onnxscript_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(pcn.PCNError, match="pip install onnxscript"):
        export_onnx(small_network(), Example.of(images(3)), tmp_path / "model.onnx", "factored")


WITHOUT_ROOM = """
import resource, sys, torch, pcn
from pathlib import Path
from torch import nn
from pcn.running.example import Example
from pcn.saving import exports

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
pcn.compress_(model, [torch.randn(99, 64)], params=0.5)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    getattr(exports, sys.argv[1])(model, Example(torch.randn(2, 64)), Path(sys.argv[2]), "factored")
except pcn.FileError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("export", ["export_onnx", "export_program", "export_state"])
def test_a_full_disk_leaves_the_file_that_was_there(export: str, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("the one before")
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOM, export, tmp_path / "model"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == f"cannot write {tmp_path / 'model'}: File too large"
    assert [each.read_text() for each in tmp_path.iterdir()] == ["the one before"]


class Tied(nn.Module):
    """An embedding whose weight the last layer has too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner, self.out = nn.Embedding(50, 32), nn.Linear(32, 32), nn.Linear(32, 50, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.out(self.inner(self.embedding(words)).relu()))


def test_tied_weights_are_written_under_all_their_names(tmp_path: Path) -> None:
    model, words = Tied().eval(), torch.randint(50, (64, 6))
    pcn.compress_(model, [words], pcn.PCNConfig(rank=8))
    export_folded(model, Example.of(words), tmp_path / "folded.safetensors")
    again = Tied().eval()
    again.load_state_dict(load_file(tmp_path / "folded.safetensors"))
    torch.testing.assert_close(again(words), model(words))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_precisions_are_exported(dtype: torch.dtype, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).eval()
    x = torch.randn(64, 32)
    pcn.compress_(model, [x], pcn.PCNConfig(rank=0.25))
    model, example = model.to(dtype), Example.of(x.to(dtype))
    for export in (export_program, export_state):
        assert export(model, example, tmp_path / export.__name__, "factored").difference is not None
    assert export_folded(model, example, tmp_path / "folded").difference is not None
    done = export_onnx(model, example, tmp_path / "model.onnx", "factored")
    assert done.path.exists()
    assert (done.difference is None) == any("onnxruntime cannot run this" in note for note in done.notes)


class TwoOutputs(nn.Module):
    """Small numbers beside large ones, and beside whole ones."""

    def __init__(self, second: torch.Tensor) -> None:
        super().__init__()
        self.layers, self.second = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 3)), second

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layers(x), self.second


@pytest.mark.parametrize("second", [torch.full((4,), 5e4), torch.full((4,), 50_000), torch.full((4,), 5e4j)])
def test_every_output_is_compared_by_its_own_size(second: torch.Tensor, tmp_path: Path) -> None:
    model, x = TwoOutputs(second).eval(), torch.randn(40, 20)
    example = Example.of(x)
    small, _ = model(x)
    assert _compared(model, example, [small.detach(), second], tmp_path) == 0
    for found in ([torch.zeros_like(small), second], [small, second + 6]):
        with pytest.raises(ExportError, match="away from the model"):
            _compared(model, example, found, tmp_path)
