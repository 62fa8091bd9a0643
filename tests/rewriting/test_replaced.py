"""What hangs on a parameter, its hooks and attributes, goes to the one that takes its place."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import pcn
from pcn.nn import PCLinear

CONFIG = pcn.PCNConfig(rank=3, layers={"0": pcn.LayerRule(rank=3, keep_outputs=4)}, skip_larger=False)


def network() -> nn.Sequential:
    layers = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)
    return nn.Sequential(*layers).eval()


def switch(model: nn.Module) -> None:
    pcn.Switch(model, None, CONFIG).now([torch.randn(40, 5)])


def test_hooks_on_gradients_that_keep_their_shape_move_along_and_their_handles_still_remove_them() -> None:
    model, seen = network(), []

    def halve(gradient: Tensor) -> Tensor:
        seen.append(gradient.shape)
        return gradient / 2

    handle = model[3].bias.register_hook(halve)
    switch(model)
    runs = []
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(1, 5)).sum().backward()
        runs.append(model[3].bias.grad.clone())
        handle.remove()
    assert type(model[3]) is PCLinear
    assert seen == [(6,)]
    torch.testing.assert_close(2 * runs[0], runs[1])


def test_a_weight_whose_gradient_goes_through_a_hook_stays_as_it_is() -> None:
    model, mask = network(), (torch.rand(6, 6) > 0.5).float()
    model[3].weight.register_hook(lambda gradient: gradient * mask)
    plan = pcn.compress_(model, [torch.randn(40, 5)], pcn.PCNConfig(rank=3, keep_outputs=0.5, skip_larger=False))
    reason = "its weight has a hook on its gradient, which knows it as it is: remove it, and register it again later"
    assert plan.layers["3"].reason == reason
    assert "a hook on the gradient of '3.weight' knows its size" in str(plan.layers["0"].output_reason)
    model(torch.ones(1, 5)).sum().backward()
    assert not model[3].weight.grad[mask == 0].any()


def test_a_hook_that_came_after_the_plan_is_not_given_another_shape() -> None:
    model, x = network(), torch.randn(40, 5)
    stats = pcn.analyze(model, [x])
    plan = pcn.make_plan(model, stats, CONFIG)
    handle = model[1].weight.register_hook(lambda gradient: gradient * torch.ones(6))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(pcn.PlanError, match=r"of shape \(6,\) has a hook on its gradient, and one of shape \(4,\)"):
        plan.apply_(model, stats)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    handle.remove()
    plan.apply_(model, stats)
    handle = model[3].weight.register_hook(lambda gradient: gradient * torch.ones(6, 3))
    with pytest.raises(pcn.PlanError, match="remove the hook"):
        pcn.fold_(model)
    assert type(model[3]) is PCLinear


def test_hooks_after_accumulation_move_along() -> None:
    model, seen = network(), []
    handle = model[3].bias.register_post_accumulate_grad_hook(seen.append)
    switch(model)
    model(torch.ones(1, 5)).sum().backward()
    assert len(seen) == 1
    assert seen[0] is model[3].bias
    handle.remove()
    model(torch.ones(1, 5)).sum().backward()
    assert len(seen) == 1


def test_attributes_move_along() -> None:
    model = network()
    for parameter in model.parameters():
        parameter.no_decay = parameter.ndim == 1  # as people mark them for their optimizers
    switch(model)
    assert all(p.no_decay == (p.ndim == 1) for p in model.parameters())


def test_hooks_move_along_when_a_saved_plan_is_taken_up() -> None:
    model, seen = network(), []
    switch(model)
    again = network()
    again[3].bias.register_hook(seen.append)
    pcn.get_plan(model).reshape_(again)
    again(torch.ones(1, 5)).sum().backward()
    assert len(seen) == 1


class Words(nn.Module):
    """An embedding of sparse gradients, whose channels go into a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 6, sparse=True)
        self.more, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, index: Tensor) -> Tensor:
        x = self.words(index)
        return self.out(torch.tanh(x + self.more(x)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sparse_gradients_and_momentum_are_cut_too(momentum: float) -> None:
    model, index = Words(), torch.tensor([1, 4, 4, 7])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    model(index).square().sum().backward()
    optimizer.step()
    stats = pcn.analyze(model, [torch.arange(10)])
    config = pcn.PCNConfig(layers={"more": pcn.LayerRule(rank=3, keep_outputs=4), "out": pcn.LayerRule(rank=3)})
    plan = pcn.make_plan(model, stats, replace(config, rank=None, skip_larger=False))
    kept, before = plan.kept("words.weight", 1), model.words.weight.grad.to_dense()
    plan.apply_(model, stats, optimizer=optimizer)
    assert kept is not None
    torch.testing.assert_close(model.words.weight.grad.to_dense(), before[:, list(kept)])
    model(index).square().sum().backward()
    optimizer.step()
    pcn.fold_(model, optimizer=optimizer)
    assert model.words.weight.grad.shape == (10, 6)


def test_state_inside_lists_does_not_go_along_unseen() -> None:
    model = network()

    class Remembers(torch.optim.SGD):
        """Keeps old gradients in a list."""

    optimizer = Remembers(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        optimizer.state[parameter]["history"] = [torch.zeros_like(parameter)]
    stats = pcn.analyze(model, [torch.randn(40, 5)])
    plan = pcn.make_plan(model, stats, CONFIG)
    with pytest.raises(pcn.PlanError, match="remembers 'history', which is unknown"):
        plan.apply_(model, stats, optimizer=optimizer, strict=True)
