"""Principal component layers behave like stock modules in everything around the forward pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from pcn.errors import ConfigError, PlanError
from pcn.maths.transform import Projected
from pcn.nn import PCConv1d, PCConv2d, PCConv3d, PCLinear, PCModule, empty_like, from_layer

LAYERS = {
    "linear": lambda **options: PCLinear(8, 6, 3, **options),
    "conv1d": lambda **options: PCConv1d(8, 6, 3, 2, padding="same", **options),
    "conv2d": lambda **options: PCConv2d(8, 6, 3, 2, padding=1, stride=2, groups=2, **options),
    "conv2d_reflect": lambda **options: PCConv2d(8, 6, (1, 3), 2, padding=1, padding_mode="reflect", **options),
    "conv3d": lambda **options: PCConv3d(8, 6, 3, 2, dilation=2, padding=2, **options),
}
OPTIONS: list[dict[str, Any]] = [{}, {"train_basis": True}, {"offset": True}, {"output_rank": 2}]


def input_for(layer: PCModule) -> torch.Tensor:
    return torch.randn(2, 8, *[5] * (layer.weight.dim() - 2), dtype=layer.weight.dtype)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_only_what_is_trained_is_a_parameter(kind: str, options: dict[str, Any]) -> None:
    layer = LAYERS[kind](**options)
    trained = {"weight", "bias"} | ({"basis", "mean"} if options.get("train_basis") else set())
    assert dict(layer.named_parameters()).keys() == trained
    held = trained | {"basis", "mean"}
    held |= {"offset_weight"} if options.get("offset") else set()
    held |= {"output_basis"} if options.get("output_rank") else set()
    assert layer.state_dict().keys() == held
    x = input_for(layer).requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert not any(buffer.requires_grad for buffer in layer.buffers())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_copies_compute_the_same(kind: str, options: dict[str, Any]) -> None:
    layer = LAYERS[kind](**options)
    x = input_for(layer)
    other = LAYERS[kind](**options)
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_the_meta_device_knows_the_shapes(kind: str, options: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    layer = LAYERS[kind](device="meta", **options)
    assert torch.equal(torch.get_rng_state(), before)
    real = LAYERS[kind](**options)
    x = input_for(real)
    assert layer(x.to("meta")).shape == real(x).shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "rank"), [(12, 2), (12, 4), (4, 3)])
def test_a_fresh_layer_has_an_orthonormal_basis_per_group(inputs: int, rank: int, dtype: torch.dtype) -> None:
    layer = PCConv2d(inputs, 9, 3, rank, groups=3 if inputs == 12 else 2 if rank < 3 else 1, dtype=dtype)
    assert not layer.mean.any()
    for block in layer.basis.double().chunk(layer.groups):
        assert torch.allclose(
            block.T @ block, torch.eye(rank).double(), atol=0.02 if dtype == torch.bfloat16 else 1e-12
        )


def test_a_fresh_layer_has_more_directions_than_inputs_if_asked() -> None:
    basis = PCLinear(4, 9, 6).basis
    assert torch.allclose(basis @ basis.T, torch.eye(4), atol=1e-6)


def test_a_fresh_layer_starts_at_the_scale_of_the_stock_layer() -> None:
    layer, stock = PCLinear(512, 64, rank=128), nn.Linear(128, 64)
    assert layer.weight.std().item() == pytest.approx(stock.weight.std().item(), rel=0.05)
    assert layer.bias.abs().max() <= 128**-0.5


def test_repr_says_what_the_stock_layer_says_and_the_rank() -> None:
    assert repr(PCLinear(8, 6, 3, train_basis=True)) == (
        "PCLinear(in_features=8, out_features=6, bias=True, rank=3, train_basis=True)"
    )
    assert repr(PCConv2d(8, 6, 3, 2, padding="same", dilation=2, groups=2, padding_mode="reflect", offset=True)) == (
        "PCConv2d(8, 6, kernel_size=(3, 3), stride=(1, 1), padding='same', dilation=(2, 2), groups=2, "
        "padding_mode='reflect', rank=2, offset=True)"
    )


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"groups": 3}, "divisible by groups"),
        ({"padding": "some"}, "Invalid padding string"),
        ({"padding": "same", "stride": 2}, "padding='same' is not supported"),
        ({"padding_mode": "none"}, "padding_mode must be one of"),
        ({"rank": 0}, "rank=0"),
        ({"output_rank": 0}, "output_rank=0"),
    ],
)
def test_impossible_layers_are_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        PCConv2d(8, 6, 3, **({"rank": 2} | wrong))


def test_tensors_of_another_shape_are_refused() -> None:
    good = Projected(torch.ones(6, 3), torch.ones(6), torch.ones(8), torch.ones(8, 3))
    layer = PCLinear(8, 6, 3)
    layer.load_(good)
    assert layer.weight.eq(1).all()
    with pytest.raises(PlanError, match=r"basis of PCLinear.* has shape \(8, 3\), but \(8, 4\) was given"):
        layer.load_(good._replace(basis=torch.ones(8, 4)))
    with pytest.raises(PlanError, match="offset_weight"):
        layer.load_(good._replace(offset_weight=torch.ones(6, 8)))


def test_a_layer_made_like_another_takes_its_place() -> None:
    stock = nn.Conv2d(8, 6, 3, stride=2, padding=1, groups=2, padding_mode="circular", dtype=torch.float64).eval()
    calls: list[nn.Module] = []
    handle = stock.register_forward_hook(lambda module, *_: calls.append(module))
    stock.weight.requires_grad_(False)
    before = torch.get_rng_state()
    layer = empty_like(stock, 3, inputs=4, outputs=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert (layer.in_channels, layer.out_channels, layer.rank, layer.padding_mode) == (4, 2, 3, "circular")
    assert (layer.stride, layer.padding, layer.groups, layer.weight.dtype) == ((2, 2), (1, 1), 2, torch.float64)
    assert not layer.training
    assert not layer.weight.requires_grad
    assert layer.bias.requires_grad
    layer(torch.randn(1, 4, 5, 5).double())
    handle.remove()
    layer(torch.randn(1, 4, 5, 5).double())
    assert calls == [layer]


def test_a_transposed_linear_layer_becomes_a_linear_one() -> None:
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    stock = pytorch_utils.Conv1D(6, 8).double()
    nn.init.normal_(stock.bias)
    layer = from_layer(stock, torch.randn(8), torch.linalg.qr(torch.randn(8, 8).double())[0])
    x = torch.randn(2, 3, 8).double()
    assert isinstance(layer, PCLinear)
    assert torch.allclose(layer(x), stock(x), atol=1e-12)


def test_other_modules_have_no_image() -> None:
    with pytest.raises(ConfigError, match="BatchNorm2d is not a Linear"):
        empty_like(nn.BatchNorm2d(3), 2)
