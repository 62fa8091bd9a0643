"""What is exported to ONNX computes what was trained: onnxruntime agrees with PyTorch, in both plain forms."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import pcn
from architectures import BY_NAME
from architectures.architecture import Batch, shake_
from architectures.prepare import outputs
from pcn import models

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("transformers")


@cache
def small_network(name: str) -> tuple[nn.Module, Batch]:
    """A network with half of its outputs and three quarters of its directions, in single precision, and a batch."""
    torch.manual_seed(0)
    if name == "conv4-pcn":
        model, batch, config = models.conv4().eval(), {"images": torch.rand(3, 3, 32, 32)}, models.config(name)
        shake_(model)
    else:
        model, batch = BY_NAME[name].build(torch.float32), BY_NAME[name].batch(torch.float32)
        config = pcn.PCNConfig(rank=0.75, keep_outputs=0.5, skip_larger=False)
    stats = pcn.analyze(model, [batch])
    plan = pcn.make_plan(model, stats, config).apply_(model, stats)
    assert any(layer.kept_outputs < layer.out_features for layer in plan.transformed)
    return model, batch


class FirstOutput(nn.Module):
    """A model of transformers as ONNX sees it: tensors in, one tensor out."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        result = self.model(**dict(zip(self.names, tensors, strict=True)))
        return result[0] if isinstance(result, dict) else result


SLOW = [
    ("resnet_basic", "factored"),
    ("resnet_basic", "dense"),
    ("conv4-pcn", "dense"),
    ("vit", "dense"),
    ("bert", "dense"),
]
FAST = [
    ("resnet_like", "factored"),
    ("resnet_like", "dense"),
    ("conv4-pcn", "factored"),
    ("vit", "factored"),
    ("bert", "factored"),
]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # raised inside torch.onnx
@pytest.mark.parametrize(("name", "form"), [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_onnxruntime_agrees(name: str, form: pcn.rewriting.plain.PlainForm, tmp_path: Path) -> None:
    model, batch = small_network(name)
    expected = outputs(model, batch)[0]
    plain = FirstOutput(pcn.to_plain(copy.deepcopy(model), form=form), list(batch)).eval()
    path = tmp_path / "model.onnx"
    torch.onnx.export(plain, tuple(batch.values()), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = zip(session.get_inputs(), batch.values(), strict=True)
    (result,) = session.run(None, {each.name: tensor.numpy() for each, tensor in given})
    torch.testing.assert_close(torch.from_numpy(result), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore:Constant folding")
def test_the_older_exporter_takes_patterns_of_taps_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(16, 3, 12, 12), nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3)).eval()
    assert pcn.compress_(model, [x], params=0.4).layers["2"].kernel_rank is not None
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-4)
