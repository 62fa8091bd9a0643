"""What hangs on a parameter, its hooks and attributes, goes to the one that takes its place."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import pcn

CONFIG = pcn.PCNConfig(rank=3, layers={"0": pcn.LayerRule(rank=3, keep_outputs=4)}, skip_larger=False)


def network() -> nn.Sequential:
    layers = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)
    return nn.Sequential(*layers).eval()


def switch(model: nn.Module) -> None:
    pcn.Switch(model, None, CONFIG).now([torch.randn(40, 5)])


def test_tensor_hooks_move_along_and_their_handles_still_remove_them() -> None:
    model, seen = network(), []

    def halve(gradient: Tensor) -> Tensor:
        seen.append(gradient.shape)
        return gradient / 2

    handle = model[3].weight.register_hook(halve)
    switch(model)
    runs = []
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(1, 5)).sum().backward()
        runs.append(model[3].weight.grad.clone())
        handle.remove()
    assert seen == [(6, 3)]
    torch.testing.assert_close(2 * runs[0], runs[1])


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
    again[3].weight.register_hook(seen.append)
    pcn.get_plan(model).reshape_(again)
    again(torch.ones(1, 5)).sum().backward()
    assert len(seen) == 1
