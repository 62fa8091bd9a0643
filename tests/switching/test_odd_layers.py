"""Tied, frozen, repeated and parametrised layers inside a switch: right, or left alone with a reason."""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.optim import SGD, AdamW

import pcn
from pcn.nn import PCModule
from switching.loop import CLASSES, CONFIG, convolutional, dense, images, step, vectors


def held(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def trained(model: nn.Module, config: pcn.PCNConfig = CONFIG) -> tuple[torch.optim.Optimizer, pcn.Plan]:
    """Train a step, switch, train a step."""
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    step(model, optimizer, vectors(0))
    plan = pcn.Switch(model, optimizer, config, strict=True).now([vectors(9)[0]])
    step(model, optimizer, vectors(1))
    return optimizer, plan


class Tied(nn.Module):
    """``second`` and ``third`` have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.third.weight = self.second.weight
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.head(torch.relu(self.third(torch.relu(self.second(x)))))


@pytest.mark.parametrize("keep_outputs", [None, 8])
def test_tied_layers_are_left_alone_and_stay_tied(keep_outputs: int | None) -> None:
    model = Tied()
    config = pcn.PCNConfig(rank=0.5, keep_outputs=keep_outputs, skip_larger=False)
    optimizer, plan = trained(model, config)
    assert model.second.weight is model.third.weight
    assert "shared by 'second' and 'third'" in (plan.layers["second"].reason or "")
    assert {layer.name for layer in plan.transformed} == {"first", "head"}
    assert held(optimizer) == {id(p) for p in model.parameters()}
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("given", ["all", "trained"])
@pytest.mark.parametrize("make", [dense, convolutional])
def test_frozen_layers_stay_frozen(make: Callable[[], nn.Sequential], given: str) -> None:
    model = make()
    model[0].requires_grad_(False)
    if make is dense:
        model[2].bias.requires_grad_(False)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    optimizer = AdamW(p for p in model.parameters() if p.requires_grad or given == "all")
    data = vectors if make is dense else images
    step(model, optimizer, data(0))
    plan = pcn.Switch(model, optimizer, CONFIG, strict=True).now([data(9)[0]])
    assert "0" in {layer.name for layer in plan.transformed}
    now_frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert now_frozen == frozen | ({"0.bias"} if make is convolutional else set())  # the gained bias of a frozen layer
    expected = {id(p) for p in model.parameters() if p.requires_grad or given == "all"}
    assert held(optimizer) == expected
    before = copy.deepcopy(model.state_dict())
    step(model, optimizer, data(1))
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in now_frozen)


class Repeated(nn.Module):
    """``again`` is called twice, and is held under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.alias = self.again

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.again(torch.tanh(self.first(x))))
        return self.head(torch.tanh(self.alias(x)))


def test_a_layer_called_twice_is_transformed_once() -> None:
    model = Repeated()
    optimizer, plan = trained(model)
    assert isinstance(model.again, PCModule)
    assert model.alias is model.again
    assert held(optimizer) == {id(p) for p in model.parameters()}
    assert len(plan.transformed) == 3


def test_the_momentum_of_a_layer_called_twice_is_exact() -> None:
    """Its gradient adds up over the calls, and the map into the new coordinates is linear."""
    model = Repeated().double()
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    inputs, labels = vectors(0)
    step(model, optimizer, (inputs.double(), labels))
    config = pcn.PCNConfig(rank=1.0, skip_larger=False)  # all directions: the function stays, and its gradient is known
    pcn.Switch(model, optimizer, config).now([inputs.double()])
    moments = {name: optimizer.state[p]["momentum_buffer"].clone() for name, p in model.named_parameters()}
    step(model, optimizer, (inputs.double(), labels))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, moments[name], rtol=1e-8, atol=1e-10)


def weight_norm(layer: nn.Module) -> None:
    parametrizations.weight_norm(layer)


def old_weight_norm(layer: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and still in use
        nn.utils.weight_norm(layer)


def old_spectral_norm(layer: nn.Module) -> None:
    nn.utils.spectral_norm(layer)


def spectral_norm(layer: nn.Module) -> None:
    parametrizations.spectral_norm(layer)


def orthogonal(layer: nn.Module) -> None:
    parametrizations.orthogonal(layer)


def pruned(layer: nn.Module) -> None:
    prune.l1_unstructured(layer, "weight", 0.5)


@pytest.mark.parametrize("keep_outputs", [None, 0.5])
@pytest.mark.parametrize("change", [weight_norm, old_weight_norm, spectral_norm, old_spectral_norm, orthogonal, pruned])
def test_a_parametrised_layer_is_left_alone(change: Callable[[nn.Module], None], keep_outputs: float | None) -> None:
    model = dense()
    change(model[2])
    parameters = {id(p) for p in model[2].parameters()}
    config = pcn.PCNConfig(rank=0.5, keep_outputs=keep_outputs, skip_larger=False)
    optimizer, plan = trained(model, config)
    assert {layer.name for layer in plan.transformed} == {"0", "4"}
    reason = plan.left_alone.get("2") or plan.layers["2"].reason
    assert "parametrised" in reason or "computed from other tensors" in reason
    assert {id(p) for p in model[2].parameters()} == parameters
    assert held(optimizer) == {id(p) for p in model.parameters()}


def compiled(layer: nn.Module) -> None:
    layer.compile(backend="eager")


def with_a_state_dict_hook(layer: nn.Module) -> None:
    layer.register_state_dict_post_hook(lambda *_: None)


def with_a_loading_hook(layer: nn.Module) -> None:
    layer.register_load_state_dict_post_hook(lambda *_: None)


class MoreState(nn.Linear):
    def get_extra_state(self) -> torch.Tensor:
        return torch.ones(1)

    def set_extra_state(self, state: torch.Tensor) -> None:
        pass


def with_more_state(layer: nn.Module) -> None:
    layer.__class__ = MoreState


def with_a_rank(layer: nn.Module) -> None:
    layer.rank = 3


def with_a_method(layer: nn.Module) -> None:
    layer.describe = types.MethodType(lambda self: self.weight.shape, layer)


@pytest.mark.parametrize(
    ("attach", "reason"),
    [
        (compiled, "it was compiled by itself"),
        (with_a_state_dict_hook, "it has hooks on its state dict"),
        (with_a_loading_hook, "it has hooks on its state dict"),
        (with_more_state, "its class has a get_extra_state of its own"),
        (with_a_rank, "it has an attribute 'rank'"),
        (with_a_method, "its 'describe' is a method of this one object"),
    ],
)
def test_what_a_new_layer_could_not_take_over_keeps_the_old_one(
    attach: Callable[[nn.Module], None], reason: str
) -> None:
    model = dense()
    attach(model[2])
    layer = model[2]
    _, plan = trained(model)
    assert model[2] is layer
    assert reason in (plan.layers["2"].reason or "")
    assert {each.name for each in plan.transformed} == {"0", "4"}


def test_a_parameter_that_the_optimizer_does_not_hold_is_still_not_held() -> None:
    model = dense()
    optimizer = SGD([model[2].weight, *model[4].parameters()], lr=0.05, momentum=0.9)
    step(model, optimizer, vectors(0))
    with pytest.warns(UserWarning, match=r"holds '0.weight', '0.bias', '2.bias', so that nothing trains"):
        pcn.Switch(model, optimizer, CONFIG).now([vectors(9)[0]])
    assert held(optimizer) == {id(p) for p in (model[2].weight, *model[4].parameters())}
    step(model, optimizer, vectors(1))
