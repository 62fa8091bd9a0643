"""Averaged copies follow by the same plan, with their own weights, and go on averaging."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

import pcn
from pcn.maths.transform import input_transform
from pcn.nn import PCModule
from pcn.rewriting.bases import find_bases
from pcn.rewriting.surgery import reshape_
from switching.loop import CONFIG, convolutional, dense, images, step, vectors


def own_average(averaged: Tensor, current: Tensor, count: int | Tensor) -> Tensor:
    return 0.7 * averaged + 0.3 * current


AVERAGES = {
    "avg_fn": {"avg_fn": own_average},
    "ema": {"multi_avg_fn": get_ema_multi_avg_fn(0.7)},
    "swa": {"multi_avg_fn": get_swa_multi_avg_fn()},
    "default": {},
}


@pytest.mark.parametrize(
    ("average", "use_buffers"),
    [(name, use) for name in AVERAGES for use in (True, False) if not (use and name == "swa")],  # torch's cannot
)
def test_it_goes_on_averaging(average: str, use_buffers: bool) -> None:
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ema = AveragedModel(model, use_buffers=use_buffers, **AVERAGES[average])
    for seed in range(3):
        step(model, optimizer, images(seed))
        ema.update_parameters(model)
    counted = ema.n_averaged.clone()
    pcn.Switch(model, optimizer, CONFIG, ema=ema).now([images(9)[0]])
    assert torch.equal(ema.n_averaged, counted)
    assert isinstance(ema.module[4], PCModule)
    before = {name: p.detach().clone() for name, p in ema.module.named_parameters()}
    step(model, optimizer, images(3))
    ema.update_parameters(model)
    share = {"avg_fn": 0.3, "ema": 0.3}.get(average, 1 / (counted.item() + 1))
    for name, parameter in model.named_parameters():
        expected = before[name] + share * (parameter.detach() - before[name])
        torch.testing.assert_close(ema.module.get_parameter(name).detach(), expected)
    for name in ("0.basis", "0.mean", "4.basis", "4.mean"):  # what is frozen is the same on both sides, and stays so
        torch.testing.assert_close(ema.module.get_buffer(name), model.get_buffer(name))


class Holder(nn.Module):
    """A model that calls its own part by the name that averaging wrappers use."""

    def __init__(self) -> None:
        super().__init__()
        self.module = dense()

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


@pytest.mark.parametrize("make", [dense, Holder])
@pytest.mark.parametrize("wrapper", ["AveragedModel", "copy"])
def test_its_own_weights_are_projected(wrapper: str, make: Callable[[], nn.Module]) -> None:
    model = make().double()
    ema = AveragedModel(model) if wrapper == "AveragedModel" else copy.deepcopy(model)
    inner = ema.module if wrapper == "AveragedModel" else ema
    for parameter in inner.parameters():
        nn.init.normal_(parameter)
    own = copy.deepcopy(inner)
    switch = pcn.Switch(model, None, CONFIG, ema=ema, keep_statistics=True)
    plan = switch.now([vectors(0)[0].double()])
    assert switch.statistics is not None
    for name, basis in find_bases(plan, switch.statistics, model).items():
        old, new = own.get_submodule(name), inner.get_submodule(name)
        weight, bias = input_transform(old.weight, old.bias, basis.mean, basis.directions)
        torch.testing.assert_close(new.weight.detach(), weight)
        torch.testing.assert_close(new.bias.detach(), bias)
        assert not torch.allclose(new.weight, model.get_submodule(name).weight)


def test_dropped_channels_are_dropped_from_the_copy_too() -> None:
    model = convolutional()
    ema = AveragedModel(model)
    nn.init.normal_(ema.module[1].weight)
    own = copy.deepcopy(ema.module)
    config = pcn.PCNConfig(rank=0.5, layers={"0": pcn.LayerRule(rank=0.5, keep_outputs=5)}, skip_larger=False)
    plan = pcn.Switch(model, None, config, ema=ema).now([images(0)[0]])
    kept = list(plan.kept("1.weight", 0) or ())
    assert len(kept) == 5
    assert torch.equal(ema.module[1].weight, own[1].weight[kept])
    ema.update_parameters(model)
    ema.eval()(images(1)[0])


def test_a_copy_of_another_shape_leaves_everything_as_it_was() -> None:
    model, ema = dense(), dense(width=20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    with pytest.raises(pcn.PlanError, match=r"^ema is no copy of the model"):
        pcn.Switch(model, optimizer, CONFIG, ema=ema).now([vectors(0)[0]])
    with pytest.raises(pcn.PlanError, match=r"^ema is no copy of the model"):
        reshape_(pcn.make_plan(model, None, CONFIG), model, optimizer=optimizer, ema=ema)
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in parameters]


def test_timms_average_follows_too() -> None:
    utils = pytest.importorskip("timm.utils", reason="needs timm", exc_type=ImportError)
    model, x = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3)).double(), torch.randn(99, 8).double()
    averaged = utils.ModelEmaV3(model, decay=0.9)
    before = averaged.module(x)
    rules = {"0": pcn.LayerRule(rank=8), "2": pcn.LayerRule(rank=64)}
    pcn.Switch(model, None, pcn.PCNConfig(layers=rules), ema=averaged).now([x])
    torch.testing.assert_close(averaged.module(x), before)
    averaged.update(model)
