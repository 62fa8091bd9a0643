"""An ordinary convolution of few channels hands its output to its batch norm, and nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pcn
from fusion.test_fuse import assert_same
from pcn.fusion import fuse_
from pcn.fusion.fuse import unfuse_
from pcn.fusion.handed import Handed
from pcn.nn import PCConv2d

BATCH = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network(stem: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(stem, nn.BatchNorm2d(8), nn.ReLU(), PCConv2d(8, 6, 3, rank=4)).double()


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"stride": 2, "padding": 1}, {"padding": (1, 1)}], ids=str)
def test_it_trains_as_before(options: dict[str, object]) -> None:
    model = network(nn.Conv2d(3, 8, 3, **options))
    twin = copy.deepcopy(model)
    assert [chain.source for chain in fuse_(model, BATCH).chains] == ["0"]
    assert type(model[0](BATCH)) is Handed
    assert_same(model, twin, BATCH)
    with torch.no_grad():
        handed = model.eval()[0](BATCH)
        assert type(handed) is Handed
        assert handed.moments is None  # at inference nobody wants them
        torch.testing.assert_close(model(BATCH), twin.eval()(BATCH), rtol=1e-8, atol=1e-8)
    model.train()
    twin.train()
    unfuse_(model)
    assert type(model[0]) is nn.Conv2d
    assert_same(model, twin, BATCH)


@pytest.mark.parametrize(
    "stem",
    [
        nn.Conv2d(65, 8, 3),  # as fast without us
        nn.Conv2d(4, 8, 3, groups=2),
        nn.Conv2d(3, 8, 3, dilation=2),
        nn.Conv2d(3, 8, (3, 1), padding=(1, 0)),
        nn.Conv2d(3, 8, 3, padding="same"),
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
    ],
    ids=str,
)
def test_convolutions_without_a_kernel_are_left_alone(stem: nn.Conv2d) -> None:
    model = network(copy.deepcopy(stem))
    batch = torch.randn(4, stem.in_channels, 9, 9, dtype=torch.float64)
    assert [chain.source for chain in fuse_(model, batch).chains] == [None]
    assert type(model[0]) is nn.Conv2d


def test_a_hook_sees_the_output_and_one_from_before_keeps_the_layer_as_it_is() -> None:
    model = network(nn.Conv2d(3, 8, 3))
    twin = copy.deepcopy(model)
    fuse_(model, BATCH)
    seen: list[Tensor] = []
    hook = model[0].register_forward_hook(lambda module, arguments, output: seen.append(output))
    assert_same(model, twin, BATCH)
    torch.testing.assert_close(seen[0], twin[0](BATCH))
    assert [chain.source for chain in fuse_(model, BATCH).chains] == [None]
    hook.remove()


def test_a_fused_model_is_analysed_planned_and_cut_as_before() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    ).double()
    twin = copy.deepcopy(model)
    fuse_(model, BATCH)
    plans = []
    for each in (model, twin):
        stats = pcn.analyze(each, [BATCH])
        plans.append(pcn.make_plan(each, stats, pcn.PCNConfig(rank=4, exclude=("0",))).apply_(each, stats))
    assert plans[0].layers == plans[1].layers
    assert [layer.name for layer in plans[0].transformed] == ["3"]
    assert_same(model, twin, BATCH)


def test_inputs_that_pytorch_refuses_are_refused_as_by_pytorch() -> None:
    model = network(nn.Conv2d(3, 8, 3)).float()
    fuse_(model, BATCH.float())
    with pytest.raises(RuntimeError, match="should be the same"):
        model(BATCH)


def test_an_output_that_is_read_twice_is_not_handed_over() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.norm(y).relu() + y

    model = Twice().double()
    assert [chain.source for chain in fuse_(model, BATCH).chains] == [None]
