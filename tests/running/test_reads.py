"""Whoever computes with a layer's weight without calling it is seen, in both modes, and keeps the layer as it is."""

from __future__ import annotations

import copy
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pcn
from pcn.errors import PlanError
from pcn.running.example import Example
from pcn.running.reads import read_directly


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def hidden(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).relu()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x))


class Always(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x) + self.second.weight.mean(1))


class WhenTrained(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        return self.last(h + self.second.weight.mean(1) if self.training else h)


class Branching(Base):
    """One that torch.export cannot follow."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(-x if x.mean() > 1e9 else x) + self.second.bias)


class InAList(Base):
    def __init__(self) -> None:
        super().__init__()
        self.tied = [self.second.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.linear(self.hidden(x), self.tied[0].t()))


class Scaling(Base):
    """The weight behind a basis says another number of inputs, and the hidden layer would be scaled by another one."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x) / self.second.weight.shape[1] ** 0.5)


class ScalingWhenTrained(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        return self.last(h / self.second.weight.size(-1) if self.training else h)


class Spreading(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x) / torch.numel(input=self.second.weight))


class ScalingByData(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x) / self.second.weight.data.shape[1])


class Folding(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x).view(-1, self.second.weight.size(dim=1)))


class Looking(Base):
    """What asks for shape, dtype or device computes with nothing."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.second.weight
        h = self.hidden(x.to(weight).type_as(weight).to(weight.dtype).to(weight.device))
        return self.last(h.view(-1, weight.shape[0], *weight.size()[2:])) * weight.dim()


class FailsInTraining(Base):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("give targets")
        return super().forward(x)


class Regularised(Base):
    """Leaves a penalty for the training loop in an attribute."""

    penalty: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.penalty = self.second.weight.sum(1).square().sum()
        return super().forward(x)


def batches() -> list[Tensor]:
    return [torch.randn(16, 6) for _ in range(4)]


@pytest.mark.parametrize(
    "kind",
    [Always, WhenTrained, Branching, InAList, Scaling, ScalingWhenTrained, Spreading, ScalingByData, Folding],
)
def test_a_layer_whose_weight_is_used_elsewhere_stays_as_it_is(kind: type[Base]) -> None:
    torch.manual_seed(0)
    model = kind()
    assert read_directly(model, Example.of(torch.randn(4, 6))).by == {"second": kind.__name__}
    x = torch.randn(4, 6)
    before = model(x)
    plan = pcn.Switch(model, None, pcn.PCNConfig(rank=1.0, skip_larger=False)).now(batches())
    assert plan.layers["second"].reason == f"{kind.__name__!r} uses its weight without calling it"
    assert [layer.name for layer in plan.transformed] == ["first", "last"]
    torch.testing.assert_close(model(x), before)


class Padded(nn.Module):
    """As many pixels as before, by what the weight says of the kernel: in patterns of taps it says something else."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        side = self.conv.weight.shape[-1] // 2
        return self.conv(F.pad(x, (side, side, side, side))).relu()


def test_a_convolution_whose_weight_says_how_far_to_pad_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Padded(3), Padded(16), nn.Conv2d(16, 16, 3))
    images = torch.randn(8, 3, 6, 6)
    plan = pcn.compress_(model, [images], pcn.Budget(params=0.8, step=1))
    assert plan.layers["1.conv"].reason == "'1' uses its weight without calling it"
    assert [layer.name for layer in plan.transformed] == ["2"]
    assert model(images).shape == (8, 16, 4, 4)


class Nested(Base):
    """One whose samples differ in length for a moment; how many there are is asked of them."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nested.nested_tensor([x[:1], x[1:]], layout=self.layout)
        return super().forward(x) * rows.size(0) + self.second.weight.mean()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_model_is_looked_at_beyond_its_nested_tensors(layout: torch.layout) -> None:
    assert read_directly(Nested(layout), Example.of(torch.randn(4, 6))).by == {"second": "Nested"}


@pytest.mark.parametrize("kind", [Base, Looking, FailsInTraining])
def test_a_look_is_no_use(kind: type[Base]) -> None:
    assert read_directly(kind(), Example.of(torch.randn(4, 6))).by == {}


def test_a_model_in_the_middle_of_its_training_is_looked_at_too() -> None:
    model = Regularised().train()
    (model(torch.randn(4, 6)).sum() + model.penalty).backward()  # it now holds a tensor with a history
    assert read_directly(model, Example.of(torch.randn(4, 6))).by == {"second": "Regularised"}
    assert model.penalty.grad_fn is not None


def test_a_model_that_cannot_be_copied_is_transformed_and_the_plan_says_what_is_unknown() -> None:
    model = WhenTrained()
    model.lock = threading.Lock()
    stats = pcn.analyze(model, batches())
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=1.0, keep_outputs=0.5, skip_larger=False))
    assert (
        "used elsewhere in train mode is unknown: the model cannot be copied: TypeError" in plan.layers["second"].note
    )
    assert "without it cannot be tried: the model cannot be copied" in plan.layers["first"].output_reason
    assert "written into" not in plan.layers["first"].output_reason


def test_whether_the_code_asks_for_its_mode_is_seen() -> None:
    example = Example.of(torch.randn(4, 6))
    plain = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(), nn.Linear(8, 2))
    assert read_directly(plain, example).alike
    assert read_directly(Base(), example).alike
    assert not read_directly(WhenTrained(), example).alike
    assert not read_directly(FailsInTraining(), example).alike


def test_layers_that_pytorch_runs_as_one_at_inference_are_called_in_training() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(layer, nn.Linear(8, 2)).eval()
    assert read_directly(model, Example.of(torch.randn(2, 5, 8))).by == {}


def test_looking_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(), nn.Linear(8, 2))
    model[1].eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    example = Example.of(torch.randn(4, 6))
    random = torch.get_rng_state()
    read_directly(model, example)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


class Counting(Base):
    """One that changes while it trains: a parameter, a number, NumPy's and Python's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.code = 0, nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.code.data += random.random() + np.random.random()  # noqa: NPY002
        return super().forward(x) + self.code


def test_a_model_that_changes_while_it_trains_does_not_change() -> None:
    model = Counting()
    python, numpy = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert read_directly(model, Example.of(torch.randn(4, 6))).by == {}
    assert model.steps == 0
    assert not model.code.any()
    assert random.getstate() == python
    assert (np.random.get_state()[1] == numpy).all()  # noqa: NPY002


class AsViews(Base):
    def __init__(self) -> None:
        super().__init__()
        self.views = [self.second.weight.t(), self.second.weight.data]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.linear(self.hidden(x) @ self.views[0], self.views[1]))


class AboutIt(Base):
    """What only asks about a weight, or has a gradient of it, computes with nothing."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.second.weight
        start = next(self.parameters()).new_zeros(len(x), 6, device=weight.data.device)
        return super().forward(x + start) * (2 if weight.grad is not None else 1)


def test_views_are_the_tensor_itself_and_questions_are_no_use() -> None:
    example = Example.of(torch.randn(4, 6))
    assert read_directly(AsViews(), example).by == {"second": "AsViews"}
    model = AboutIt()
    model(torch.randn(4, 6)).sum().backward()
    assert read_directly(model, example).by == {}


def test_a_layers_own_hooks_are_its_own() -> None:
    model, seen = Base(), list[Tensor]()
    model.second.register_forward_hook(lambda module, args, output: seen.append(module.weight.norm()))
    assert read_directly(model, Example.of(torch.randn(4, 6))).by == {}
    assert len(seen) == 2


def test_a_plan_that_would_leave_an_old_weight_in_use_is_refused_and_nothing_changes() -> None:
    torch.manual_seed(0)
    stats = pcn.analyze(Base(), batches())
    plan = pcn.make_plan(Base(), stats, pcn.PCNConfig(rank=4, skip_larger=False))
    model = InAList()
    second, before = model.second, copy.deepcopy(model.state_dict())
    with pytest.raises(PlanError, match=r"old weight or bias of 'second'.*exclude this layer"):
        plan.apply_(model, pcn.analyze(model, batches()))
    assert model.second is second
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
