"""In all directions of its inputs a network is the same function: what its parameters carry over is known exactly."""

from __future__ import annotations

import copy
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import pcn
from pcn.nn import PCModule
from random_models.choices import Choices
from random_models.model import Case
from random_models.properties import measured
from random_models.requests import full_rank

TOLERANCE = 1e-8


def backward(model: nn.Module, case: Case) -> None:
    """Gradients of a loss that every output has its part in."""
    model.zero_grad()
    outputs = tree_leaves(model.eval()(case.inputs))
    sum((torch.sin(o) * torch.linspace(-1, 1, o.numel()).view_as(o)).sum() for o in outputs).backward()


def missing_part(layer: PCModule) -> Tensor:
    """What the weight's gradient carries too much of where the old layer had no bias: db (Uᵀmu), group by group."""
    tensors = (tensor.chunk(layer.groups) for tensor in (layer.bias.grad, layer.mean, layer.basis))
    rows = torch.cat([torch.outer(bias, mean @ basis) for bias, mean, basis in zip(*tensors, strict=True)])
    return rows.reshape(*rows.shape, *[1] * (layer.weight.dim() - 2))


def check(choices: Choices) -> None:
    case, stats = measured(choices)
    model = case.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    try:
        backward(model, case)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return  # some of the random models can run but not be trained
    optimizer.step()  # the momentum is the gradient, and the weights stay
    averaged = copy.deepcopy(model)
    plan = pcn.make_plan(model, stats, full_rank(choices, model))
    plan.apply_(model, stats, optimizer=optimizer, ema=averaged)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert held == [id(p) for p in model.parameters()]
    carried = {name: p.grad for name, p in model.named_parameters()}
    momenta = {name: optimizer.state[p].get("momentum_buffer") for name, p in model.named_parameters()}
    model.zero_grad()
    backward(model, case)
    gained = {f"{layer.name}.bias" for layer in plan.transformed if not layer.bias}
    for name, parameter in model.named_parameters():
        if name in gained:
            assert carried[name] is None
            continue
        expected = parameter.grad
        owner = name.rpartition(".")[0]
        if f"{owner}.bias" in gained and expected is not None:
            expected = expected + missing_part(model.get_submodule(owner))
        for found in (carried[name], momenta[name]):
            assert (found is None) == (expected is None)
            if expected is not None:
                assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max().clamp_min(1)
    for one, other in zip(model.state_dict().values(), averaged.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_gradients_and_momentum_are_those_of_the_new_network(random: Random) -> None:
    choices = Choices(random.randrange)
    try:
        check(choices)
    except BaseException:
        note(f"Choices.replayed({choices.taken}) makes this case again")
        raise


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 400, 100))
def test_on_many_more(start: int) -> None:
    for seed in range(start, start + 100):
        check(Choices.seeded(seed))
