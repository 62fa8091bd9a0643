"""Layers whose weight somebody else reads, shares or computes are left alone, and the plan says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph.coupling import Wired
from torch import Tensor, nn

import pcn
from pcn import LayerRule, PCNConfig

EVERYTHING = PCNConfig(rank=1.0, keep_outputs=0.5, skip_larger=False)


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
    return Wired(lambda m, x: m.after(use(m, m.before(x))), before=nn.Linear(4, 6), middle=middle, after=nn.Linear(6, 3))


def attention() -> Wired:
    middle = nn.MultiheadAttention(6, 2, batch_first=True)
    return surrounded(middle, lambda m, x: m.middle(x, x, x, need_weights=False)[0])


def tied() -> Wired:
    model = surrounded(nn.Linear(6, 6), lambda m, x: m.twin(m.middle(x)))
    model.twin = nn.Linear(6, 6)
    model.twin.weight = model.middle.weight
    return model


def pruned() -> Wired:
    with pytest.warns() if False else torch.no_grad():
        middle = nn.Linear(6, 6)
    torch.nn.utils.prune.random_unstructured(middle, "weight", amount=0.5)
    return surrounded(middle)


CASES: dict[str, tuple[Wired, str, str]] = {
    "attention": (attention(), "middle.out_proj", "MultiheadAttention reads its weight directly"),
    "encoder": (
        surrounded(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)),
        "middle.linear1",
        "TransformerEncoderLayer reads its weight directly",
    ),
    "tied": (tied(), "middle", "its weight is shared by 'middle' and 'twin'"),
    "parametrised": (surrounded(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))), "middle", "parametrised"),
    "pruned": (pruned(), "middle", "is computed from other tensors"),
    "own": (surrounded(OwnLinear()), "middle", "OwnLinear is not a Linear"),
    "subclass": (surrounded(Subclass(6, 6)), "middle", "Subclass is not a Linear"),
    "borrowed": (
        surrounded(nn.Linear(6, 6), lambda m, x: m.middle(x) + F.linear(x, m.middle.weight)),
        "middle",
        "uses its weight without calling it",
    ),
    "penalised": (
        surrounded(nn.Linear(6, 6), lambda m, x: m.middle(x) + m.middle.weight.abs().sum()),
        "middle",
        "uses its weight without calling it",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_left_alone_with_the_reason(case: str) -> None:
    model, layer, reason = CASES[case]
    model.double().eval()
    batch = torch.randn(8, 5, 4, dtype=torch.float64)
    stats = pcn.analyze(model, [batch])
    plan = pcn.make_plan(model, stats, EVERYTHING)
    said = plan.layers[layer].reason if layer in plan.layers else plan.left_alone[layer]
    assert reason in str(said)
    # Whoever reads channels and is not transformed keeps them all, and so does the layer before it.
    assert plan.layers["before"].kept_outputs == 6
    assert plan.layers["before"].output_reason
    with torch.no_grad():
        expected = model(batch)
        plan.with_rank("before", 4).with_rank("before", 4).apply_(model, stats)
        assert torch.allclose(model(batch), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_asking_for_it_by_name_is_an_error(case: str) -> None:
    model, layer, _ = CASES[case]
    if pcn.get_plan(model) is not None:
        pcn.fold_(model)
    batch = torch.randn(8, 5, 4, dtype=next(model.parameters()).dtype)
    stats = pcn.analyze(model, [batch])
    with pytest.raises(pcn.ConfigError, match="must be left alone"):
        pcn.make_plan(model, stats, PCNConfig(layers={layer: LayerRule(rank=2)}))
