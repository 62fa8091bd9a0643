"""Where a bias that a layer gains goes to train, and what Muon, which takes matrices only, remembers of its weight."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer

import pcn

SMALL = pcn.PCNConfig(rank=4, skip_larger=False)
GAINED = ("0.bias", "3.bias", "6.bias")


def biasless() -> nn.Sequential:
    norms = [nn.LayerNorm(16), nn.LayerNorm(16)]
    widths = ((8, 16), (16, 16), (16, 3))
    layers = [nn.Linear(*sizes, bias=False) for sizes in widths]
    return nn.Sequential(layers[0], norms[0], nn.ReLU(), layers[1], norms[1], nn.ReLU(), layers[2]).double()


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(32, 8, generator=generator, dtype=torch.double), torch.randint(3, (32,), generator=generator)


def of_dimension(model: nn.Module, ndim: int) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.ndim == ndim]


def train(model: nn.Module, optimizers: list[Optimizer], steps: range) -> None:
    for seed in steps:
        inputs, labels = batch(seed)
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        for optimizer in optimizers:
            optimizer.step()


def switched(model: nn.Module, optimizers: list[Optimizer]) -> pcn.Switch:
    switch = pcn.Switch(model, optimizers, SMALL, strict=True)
    switch.now([batch(99)[0]])
    return switch


def with_muon(model: nn.Module) -> list[Optimizer]:
    """Muon trains hidden matrices, AdamW the last one in its first group and vectors in the second."""
    *hidden, last = of_dimension(model, 2)
    groups = [{"params": [last]}, {"params": of_dimension(model, 1), "lr": 0.02, "weight_decay": 0.0}]
    return [Muon(hidden, lr=0.02), AdamW(groups, lr=0.01)]


def names_in(group: dict[str, Any]) -> list[str]:
    return list(group["param_names"])


def test_a_bias_that_muon_does_not_take_joins_the_group_that_holds_vectors() -> None:
    model = biasless()
    muon, adamw = optimizers = with_muon(model)
    train(model, optimizers, range(3))
    switched(model, optimizers)
    assert names_in(muon.param_groups[0]) == ["0.weight", "3.weight"]
    assert names_in(adamw.param_groups[0]) == ["6.weight", "6.bias"]  # AdamW takes a bias where its weight is
    assert names_in(adamw.param_groups[1])[-2:] == ["0.bias", "3.bias"]
    held = {
        name: p for o in optimizers for g in o.param_groups for name, p in zip(names_in(g), g["params"], strict=True)
    }
    own = dict(model.named_parameters())
    assert held.keys() == own.keys()
    assert all(held[name] is own[name] for name in own)
    before = copy.deepcopy(model.state_dict())
    train(model, optimizers, range(3, 6))
    assert not any(torch.equal(before[name], model.get_parameter(name)) for name in GAINED)


@pytest.mark.parametrize("given", ["w{}", "model.{}.weight"])
def test_its_name_follows_that_of_its_weight_where_that_one_names_a_layer(given: str) -> None:
    model = biasless()
    layers = ("0", "3", "6")
    optimizer = AdamW([(given.format(name), model.get_submodule(name).weight) for name in layers])
    pcn.Switch(model, optimizer, SMALL).now([batch(99)[0]])
    gained = "model.{}.bias" if "." in given else "{}.bias"
    assert names_in(optimizer.param_groups[0]) == [each.format(n) for n in layers for each in (given, gained)]


def test_a_resumed_run_has_it_there_too() -> None:
    model, again = biasless(), biasless()
    optimizers, others = with_muon(model), with_muon(again)
    train(model, optimizers, range(3))
    switch = switched(model, optimizers)
    train(model, optimizers, range(3, 6))
    pcn.Switch(again, others, SMALL).load_state_dict(switch.state_dict())
    again.load_state_dict(model.state_dict())
    for fresh, saved in zip(others, optimizers, strict=True):
        fresh.load_state_dict(copy.deepcopy(saved.state_dict()))
    for each, theirs in ((model, optimizers), (again, others)):
        train(each, theirs, range(6, 9))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


class MatricesBesideRest(Optimizer):
    """Both in one optimizer, by a flag of its groups, as the reference implementation of Muon has it."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        if any("matrices" not in group for group in groups):
            raise ValueError("say of each group whether it is one of matrices")
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if group["matrices"] and parameter.ndim < 2:
                    raise ValueError("a vector among matrices")
                parameter.sub_(parameter.grad.sign(), alpha=0.01)


def test_among_the_groups_of_one_optimizer_too() -> None:
    model = biasless()
    matrices, vectors = ([p for _, p in of_dimension(model, ndim)] for ndim in (2, 1))
    optimizer = MatricesBesideRest([{"params": matrices, "matrices": True}, {"params": vectors, "matrices": False}])
    with pytest.warns(UserWarning, match="MatricesBesideRest is not"):
        pcn.Switch(model, optimizer, SMALL).now([batch(99)[0]])
    assert {id(p) for p in optimizer.param_groups[1]["params"]} == {id(p) for _, p in of_dimension(model, 1)}
    train(model, [optimizer], range(2))


def test_a_bias_that_joins_others_with_a_momentum_has_one_of_zero() -> None:
    model = biasless()
    muon = Muon([p for _, p in of_dimension(model, 2)], lr=0.02)
    sgd = SGD([p for _, p in of_dimension(model, 1)], lr=0.1, momentum=0.9, fused=True)
    train(model, [muon, sgd], range(2))
    switched(model, [muon, sgd])
    assert not any(sgd.state[model.get_parameter(name)]["momentum_buffer"].any() for name in GAINED)
    train(model, [muon, sgd], range(2))


def gathered_with(biases: type[Optimizer], **options: Any) -> tuple[nn.Module, Muon, Optimizer]:
    model = dense()
    muon = Muon([p for _, p in of_dimension(model, 2)], lr=0.02, momentum=0.9)
    other = biases([p for _, p in of_dimension(model, 1)], lr=0.01, **options)
    train(model, [muon, other], range(4))
    return model, muon, other


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_muons_momentum_is_that_of_the_new_coordinates(kind: type[Optimizer]) -> None:
    model, muon, other = gathered_with(kind, betas=(0.9, 0.99))
    momentum = muon.state[model[2].weight]["momentum_buffer"].clone()
    of_bias = other.state[model[2].bias]["exp_avg"].clone()
    switched(model, [muon, other])
    expected = (momentum - of_bias[:, None] * model[2].mean) @ model[2].basis
    torch.testing.assert_close(muon.state[model[2].weight]["momentum_buffer"], expected)


def test_a_sum_of_gradients_is_not_taken_for_a_mean_of_them() -> None:
    model, muon, sgd = gathered_with(SGD, momentum=0.9)
    momentum = muon.state[model[2].weight]["momentum_buffer"].clone()
    switched(model, [muon, sgd])
    torch.testing.assert_close(muon.state[model[2].weight]["momentum_buffer"], momentum @ model[2].basis)


def test_the_way_back_takes_muons_momentum_along_and_a_gained_bias_away() -> None:
    model = nn.Sequential(
        nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3, bias=False), nn.BatchNorm1d(3)
    ).double()
    muon = Muon([p for _, p in of_dimension(model, 2)], lr=0.02)
    sgd = SGD([p for _, p in of_dimension(model, 1)], lr=0.1, momentum=0.9)
    switched(model, [muon, sgd])
    train(model, [muon, sgd], range(3))
    momentum, basis = muon.state[model[3].weight]["momentum_buffer"].clone(), model[3].basis
    assert pcn.fold_(model, optimizer=[muon, sgd]) == []
    assert {id(p) for p in sgd.param_groups[0]["params"]} == {id(p) for _, p in of_dimension(model, 1)}
    torch.testing.assert_close(muon.state[model[3].weight]["momentum_buffer"], momentum @ basis.T)
    train(model, [muon, sgd], range(3, 5))


def test_a_trained_basis_trains_where_no_optimizer_holds_the_bias() -> None:
    model = dense()
    for layer in (model[0], model[2]):
        layer.bias.requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    stats = pcn.analyze(model, [batch(0)[0]])
    config = pcn.PCNConfig(rank=4, skip_larger=False, train_basis=True)
    pcn.make_plan(model, stats, config).apply_(model, stats, optimizer=optimizer, strict=True)
    held = {id(parameter) for parameter in optimizer.param_groups[0]["params"]}
    assert held == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    before = model[0].basis.detach().clone()
    train(model, [optimizer], range(2))
    assert not torch.equal(before, model[0].basis)
