"""Plain forms compute what the principal component layers compute, and fit where those stood."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

from explicit_form import Case, cases, distance
from pcn.errors import ConfigError, PlanError
from pcn.nn import PCConv2d, PCLinear, PCModule, empty_like, from_layer
from pcn.rewriting.plain import Factored, PlainForm, dense_layer, factored_layer, to_plain

FORMS = ("factored", "dense")


def call(layer: nn.Module, x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using padding='same' with even kernel")
        return layer(x)


def small_network() -> nn.Sequential:
    model = nn.Sequential(
        PCConv2d(3, 8, 3, 2, padding=1, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        PCConv2d(8, 8, 3, 2, padding="same", groups=2),
        PCConv2d(8, 6, (1, 3), 4, padding=1, padding_mode="reflect", output_rank=3),
        nn.Flatten(),
        PCLinear(6 * 6 * 4, 5, 6),
    )
    for module in model:
        if isinstance(module, PCModule):
            nn.init.normal_(module.mean)
    return model.eval()


@given(cases(), st.booleans())
def test_both_forms_equal_the_layer(case: Case, both_sides: bool) -> None:
    layer = empty_like(case.layer, case.rank, output_rank=2 if both_sides else None)
    layer.reset_parameters()
    layer.mean.copy_(case.mean)
    expected = layer(case.x)
    dense, factored = dense_layer(layer), factored_layer(layer)
    assert type(dense) is type(case.layer)
    assert dense.weight.shape == case.layer.weight.shape
    assert distance(call(dense, case.x), expected) < 1e-10
    assert len(factored) == (3 if both_sides else 2)
    assert distance(call(factored, case.x), expected) < 1e-10


@given(cases())
def test_with_its_offset_the_dense_form_is_the_original(case: Case) -> None:
    dense = dense_layer(from_layer(case.layer, case.mean, case.truncated, offset=True))
    assert distance(dense.weight, case.layer.weight) < 1e-12
    assert distance(call(dense, case.x), case.stock_output()) < 1e-10


@pytest.mark.parametrize("form", FORMS)
def test_a_plain_model_has_stock_layers_only(form: str) -> None:
    model, x = small_network(), torch.randn(2, 3, 7, 7)
    expected = model(x)
    plain = to_plain(model, form=form)
    assert not any(isinstance(module, PCModule) for module in plain.modules())
    assert any(isinstance(module, PCModule) for module in model.modules())
    assert torch.allclose(plain(x), expected, atol=1e-5)
    assert not any(module.training for module in plain.modules())
    assert {tensor.data_ptr() for tensor in plain.state_dict().values() if tensor.numel() > 1}.isdisjoint(
        tensor.data_ptr() for tensor in model.state_dict().values()
    )


def test_the_factored_form_trains_what_was_trained() -> None:
    factored = factored_layer(PCConv2d(8, 6, 3, 2, output_rank=3))
    trained = {name for name, parameter in factored.named_parameters() if parameter.requires_grad}
    assert trained == {"core.weight", "expand.bias"}
    trained = factored_layer(PCLinear(8, 6, 2, train_basis=True)).parameters()
    assert all(parameter.requires_grad for parameter in trained)


def test_a_factored_layer_answers_as_one_layer() -> None:
    layer = factored_layer(PCLinear(8, 6, 2, dtype=torch.float64))
    assert (layer.in_features, layer.out_features, layer.weight.dtype) == (8, 6, torch.float64)
    assert not hasattr(layer, "in_channels")
    layer = factored_layer(PCConv2d(8, 6, 3, 2, stride=2, padding=1, output_rank=2))
    assert (layer.in_channels, layer.out_channels, layer.kernel_size) == (8, 6, (3, 3))
    assert (layer.stride, layer.padding, layer.bias.shape) == ((2, 2), (1, 1), (6,))


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_under_two_names_stays_one_and_keeps_its_hooks(form: str) -> None:
    shared = PCLinear(4, 4, 2)
    calls: list[int] = []
    shared.register_forward_hook(lambda *_: calls.append(1))
    model = nn.Sequential(shared, nn.ReLU(), shared)
    plain = to_plain(model, form=form)
    assert plain[0] is plain[2]
    assert torch.allclose(plain(torch.ones(1, 4)), model(torch.ones(1, 4)), atol=1e-6)
    assert len(calls) == 4


def test_a_model_that_is_one_layer_is_converted_too() -> None:
    layer = PCLinear(4, 3, 2)
    assert type(to_plain(layer, form="dense")) is nn.Linear
    assert type(to_plain(layer)) is Factored


def test_what_cannot_be_converted_is_refused() -> None:
    model = nn.Sequential(nn.Sequential(PCLinear(4, 3, 2, offset=True)))
    with pytest.raises(PlanError, match=r"'0\.0' keeps its dropped part .* use form='dense'"):
        to_plain(model)
    assert type(to_plain(model, form="dense")[0][0]) is nn.Linear
    with pytest.raises(ConfigError, match="form='sparse'"):
        to_plain(model, form="sparse")


def test_a_weight_that_is_computed_from_others_still_is() -> None:
    model = nn.Sequential(PCLinear(6, 4, 2), nn.Linear(4, 4))
    prune.l1_unstructured(model[1], "weight", 0.5)
    x = torch.randn(3, 6)
    expected = model(x)  # which leaves the pruned weight with a history
    plain = to_plain(model)
    assert distance(plain(x), expected) < 1e-6
    plain(x).sum().backward()
    assert plain[1].weight_orig.grad.any()
    assert model[1].weight_orig.grad is None


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = nn.Sequential(PCLinear(6, 4, 2))
    model.lock = threading.Lock()
    with pytest.raises(PlanError, match=r"cannot be copied: TypeError: cannot pickle .*lock.* outside the model"):
        to_plain(model)


@pytest.mark.parametrize("form", FORMS)
def test_torch_export_accepts_the_plain_form(form: str) -> None:
    plain, x = to_plain(small_network(), form=form), torch.randn(2, 3, 7, 7)
    program = torch.export.export(plain, (x,))
    assert torch.allclose(program.module()(x), plain(x), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # raised inside torch.onnx
@pytest.mark.parametrize("form", FORMS)
def test_onnxruntime_agrees(form: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, x = small_network(), torch.randn(2, 3, 7, 7)
    path = tmp_path / "model.onnx"
    torch.onnx.export(to_plain(model, form=form), (x,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert torch.allclose(torch.from_numpy(y), model(x), atol=1e-4)


@pytest.mark.parametrize("form", ["factored", "dense"])
def test_torchscript_takes_the_plain_form(form: PlainForm) -> None:
    plain, x = to_plain(small_network(), form).eval(), torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript itself
        torch.testing.assert_close(torch.jit.script(plain)(x), plain(x))


@pytest.mark.parametrize("form", FORMS)
def test_tools_that_follow_no_sizes_take_the_plain_form(form: PlainForm) -> None:
    model, x = small_network().eval(), torch.randn(2, 3, 7, 7)
    plain = to_plain(model, form)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch.jit.script.* is deprecated")
        made = [torch.fx.symbolic_trace(plain), torch.jit.script(plain)]
    for each in made:
        assert distance(each(x), model(x)) < 1e-5
