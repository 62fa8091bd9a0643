"""Layers whose weight somebody else reads, shares or computes are left alone, and the plan says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import pcn
from graph.coupling import Wired
from pcn import LayerRule, PCNConfig


class OwnLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Subclass(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def surrounded(middle: Any, use: Any = lambda m, x: m.middle(x)) -> Wired:
    return Wired(
        lambda m, x: m.after(use(m, m.before(x))), before=nn.Linear(4, 6), middle=middle, after=nn.Linear(6, 3)
    )


def attention() -> Wired:
    middle = nn.MultiheadAttention(6, 2, batch_first=True)
    return surrounded(middle, lambda m, x: m.middle(x, x, x, need_weights=False)[0])


def tied() -> Wired:
    model = surrounded(nn.Linear(6, 6), lambda m, x: m.twin(m.middle(x)))
    model.twin = nn.Linear(6, 6)
    model.twin.weight = model.middle.weight
    return model


def pruned() -> Wired:
    return surrounded(prune.random_unstructured(nn.Linear(6, 6), "weight", amount=0.5))


def normed() -> Wired:
    return surrounded(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)))


def encoder() -> Wired:
    return surrounded(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True))


def borrowed() -> Wired:
    return surrounded(nn.Linear(6, 6), lambda m, x: m.middle(x) + F.linear(x, m.middle.weight))


def penalised() -> Wired:
    return surrounded(nn.Linear(6, 6), lambda m, x: m.middle(x) + m.middle.weight.abs().sum())


def with_a_buffer() -> Wired:
    model = surrounded(nn.Linear(6, 6))
    model.middle.register_buffer("largest", torch.zeros(6))
    return model


def with_an_adapter() -> Wired:
    model = surrounded(nn.Linear(6, 6))
    model.middle.adapter = nn.Linear(6, 6)
    model.middle.register_forward_hook(lambda layer, inputs, output: output + layer.adapter(*inputs))
    return model


CASES: dict[str, tuple[Callable[[], Wired], str, str]] = {
    "attention": (attention, "middle.out_proj", "MultiheadAttention reads its weight directly"),
    "encoder": (encoder, "middle.linear1", "TransformerEncoderLayer reads its weight directly"),
    "tied": (tied, "middle", "its weight is shared by 'middle' and 'twin'"),
    "parametrised": (normed, "middle", "its weight is parametrised"),
    "pruned": (pruned, "middle", "is computed from other tensors"),
    "buffer": (with_a_buffer, "middle", "it holds 'largest' beside its weight and bias"),
    "adapter": (with_an_adapter, "middle", "it holds 'adapter' beside its weight and bias"),
    "own": (lambda: surrounded(OwnLinear()), "middle", "OwnLinear is not a Linear"),
    "subclass": (lambda: surrounded(Subclass(6, 6)), "middle", "Subclass is not a Linear"),
    "borrowed": (borrowed, "middle", "uses its weight without calling it"),
    "penalised": (penalised, "middle", "uses its weight without calling it"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Wired, str, str]:
    make, layer, reason = CASES[request.param]
    return make().double().eval(), layer, reason


def test_left_alone_with_the_reason(case: tuple[Wired, str, str]) -> None:
    model, layer, reason = case
    batch = torch.randn(8, 5, 4, dtype=torch.float64)
    stats = pcn.analyze(model, [batch])
    plan = pcn.make_plan(model, stats, PCNConfig(rank=1.0, keep_outputs=0.5, skip_larger=False))
    said = plan.layers[layer].reason if layer in plan.layers else plan.left_alone[layer]
    assert reason in str(said)
    # Whoever reads channels and is not transformed keeps them all, and so does the layer before it.
    assert plan.layers["before"].kept_outputs == 6
    assert plan.layers["before"].output_reason
    with torch.no_grad():
        expected = model(batch)
        plan.apply_(model, stats)
        assert torch.allclose(model(batch), expected, rtol=1e-9, atol=1e-9)


def test_asking_for_it_by_name_is_an_error(case: tuple[Wired, str, str]) -> None:
    model, layer, _ = case
    stats = pcn.analyze(model, [torch.randn(8, 5, 4, dtype=torch.float64)])
    with pytest.raises(pcn.ConfigError, match="must be left alone"):
        pcn.make_plan(model, stats, PCNConfig(layers={layer: LayerRule(rank=2)}))
