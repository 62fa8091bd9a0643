"""How operators carry channels, and what is found out about layers from the way that the model uses them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pcn
from architectures.prepare import difference, with_dropped_inputs_at_zero
from pcn import LayerRule, PCNConfig


class Between(nn.Module):
    """Two layers with a function between them; a layer that the function wants is an argument of it."""

    def __init__(self, function: Callable[..., Tensor], *extra: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(width, 3)
        self.extra = nn.ModuleList(extra)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x), *self.extra))


def transformed(model: nn.Module, x: Tensor, **settings: object) -> tuple[nn.Module, pcn.Plan]:
    stats = pcn.analyze(model, [x])
    changed = copy.deepcopy(model)
    config = PCNConfig(rank=1.0, skip_larger=False, **settings)  # type: ignore[arg-type]
    return changed, pcn.make_plan(changed, stats, config).apply_(changed, stats)


def data() -> Tensor:
    return torch.randn(4, 5, 6, dtype=torch.float64)


def upsampled(x: Tensor, layer: nn.Module) -> Tensor:
    """Add what a transposed convolution puts out to its neighbour's channels."""
    return (x + layer(torch.ones(4, 2, 5, dtype=x.dtype)).transpose(1, 2)).relu()


CARRIED: dict[str, tuple[Callable[..., Tensor], tuple[nn.Module, ...]]] = {
    "reshape_as": (lambda x: x.flatten(0, 1).relu().reshape_as(x), ()),
    "view_as": (lambda x: x.flatten(1, 2).view_as(x), ()),
    "picked positions": (lambda x: x[:, torch.tensor([0, 2, 2])], ()),
    "picked along two dimensions": (lambda x: x[torch.tensor([0, 3]), torch.tensor([1, 1])], ()),
    "picked along two that are apart": (lambda x: x[..., None][torch.tensor([0, 1]), :, :, torch.tensor([0, 0])], ()),
    "an empty part": (lambda x: torch.cat([x.relu(), x[..., 8:]], -1), ()),
    "a change of dtype": (lambda x: x.to(torch.float32).to(x.dtype), ()),
    "a transposed convolution": (upsampled, (nn.ConvTranspose1d(2, 8, 3, padding=1),)),
}


@pytest.mark.parametrize("name", CARRIED)
def test_channels_are_dropped_through(name: str) -> None:
    function, extra = CARRIED[name]
    model = Between(function, *copy.deepcopy(extra)).double()
    x = data()
    small, plan = transformed(model, x, keep_outputs=0.5)
    assert plan.layers["first"].kept_outputs == 4, plan.layers["first"].output_reason
    reference = with_dropped_inputs_at_zero(model, plan)
    assert difference([small(x)], [reference(x)]) < 1e-12
    pcn.fold_(small)
    assert difference([small(x)], [reference(x)]) < 1e-12
    assert [t.shape for t in small.state_dict().values()] == [t.shape for t in model.state_dict().values()]


REFUSED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "single channels": (lambda x: torch.stack([x[..., 0], x[..., 5]], -1).repeat(1, 1, 4), "picks single channels"),
    "numbers of channels": (lambda x: x[..., torch.arange(8)], "picks single channels by number"),
    "channels as positions": (lambda x: F.conv1d(x, torch.ones(5, 1, 3).to(x), padding=1, groups=5), ""),
    "a transposed convolution": (
        lambda x: F.conv_transpose1d(x.transpose(1, 2), torch.ones(8, 8, 1).to(x)).transpose(1, 2),
        "a transposed convolution reads it",
    ),
    "a size that depends on the data": (lambda x: x[torch.ones(4, 5) > 0], "depends on the data"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_channels_stay_before(name: str) -> None:
    function, reason = REFUSED[name]
    model, x = Between(function).double(), data()
    small, plan = transformed(model, x, keep_outputs=0.5)
    assert plan.layers["first"].kept_outputs == 8
    assert reason in (plan.layers["first"].output_reason or "")
    assert difference([small(x)], [model(x)]) < 1e-12
    assert pcn.Plan.from_json(plan.to_json()) == plan
    assert "first" in str(plan)


class WeightReader(nn.Module):
    """Uses the weight of one of its layers, and the bias of another, beside calling them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.a(x).relu())
        return self.c(y + y.relu() @ self.b.weight.T) + self.a.bias.sum()


def test_a_layer_whose_tensors_are_used_elsewhere_is_left_alone() -> None:
    model, x = WeightReader().double(), data()
    changed, plan = transformed(model, x)
    assert difference([changed(x)], [model(x)]) < 1e-12
    assert {layer.name for layer in plan.transformed} == {"c"}
    assert plan.layers["b"].reason == "'WeightReader' uses its weight without calling it"


def test_looking_at_a_weights_dtype_is_no_use_of_it() -> None:
    model = Between(lambda x, layer: layer(x.type_as(layer.weight).to(layer.weight)), nn.Linear(8, 8)).double()
    _, plan = transformed(model, data())
    assert {layer.name for layer in plan.transformed} == {"first", "extra.0", "last"}


class OwnLinear(nn.Linear):
    """A linear layer with a forward function of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("order", ["truncate_first", "project_first"])
def test_a_reader_that_cannot_be_transformed_keeps_its_inputs(order: str) -> None:
    model = Between(lambda x, own, other: own(x.relu()) + other(x.relu()), OwnLinear(8, 8), nn.Linear(8, 8)).double()
    x = data()
    changed, plan = transformed(model, x, keep_outputs=0.5, order=order)
    assert plan.layers["first"].kept_outputs == 8
    assert "'extra.0' reads it, and OwnLinear cannot be transformed" in str(plan.layers["first"].output_reason)
    assert difference([changed(x)], [model(x)]) < 1e-12


def beside(x: Tensor, left: nn.Module, right: nn.Module) -> Tensor:
    """A layer of 5 outputs beside one of 3, added to the 8 before them."""
    return x + torch.cat([left(x), right(x)], -1)


def test_one_wish_for_all_is_met_as_nearly_as_channels_can_be_shared() -> None:
    model, x = Between(beside, nn.Linear(8, 5), nn.Linear(8, 3)).double(), data()
    small, plan = transformed(model, x, keep_outputs=0.5)
    kept = {name: plan.layers[name].kept_outputs for name in ("first", "extra.0", "extra.1")}
    assert kept["first"] == kept["extra.0"] + kept["extra.1"] < 8
    assert difference([small(x)], [with_dropped_inputs_at_zero(model, plan)(x)]) < 1e-12


def test_two_wishes_that_contradict_each_other_are_an_error() -> None:
    model, x = Between(beside, nn.Linear(8, 5), nn.Linear(8, 3)).double(), data()
    wishes = {"first": LayerRule(rank=1.0, keep_outputs=6), "extra.*": LayerRule(rank=1.0, keep_outputs=2)}
    with pytest.raises(pcn.CouplingError, match=r"'extra\.\d' and 'first' share channels"):
        transformed(model, x, layers=wishes)
