"""Activation checkpointing around layers that switch: the gradients are those without it, before and after."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import pcn
from switching.loop import CONFIG, convolutional, dense, gradients, images, step, vectors


class Checkpointed(nn.Module):
    """The body's activations are computed again in the backward pass, all but the last layer's."""

    def __init__(self, body: nn.Sequential, use_reentrant: bool) -> None:
        super().__init__()
        self.body, self.head = body[:-1], body[-1]
        self.use_reentrant, self.on = use_reentrant, True

    def forward(self, x: Tensor) -> Tensor:
        if self.on and torch.is_grad_enabled():
            x = x.requires_grad_() if self.use_reentrant else x
            return self.head(checkpoint(self.body, x, use_reentrant=self.use_reentrant))
        return self.head(self.body(x))


def assert_same_gradients(model: Checkpointed, kind: str) -> None:
    batch = vectors(5) if kind == "dense" else images(5)
    found = []
    for model.on in (True, False):
        fresh = copy.deepcopy(model)  # batch norm's running statistics are written to on every pass
        torch.manual_seed(1)
        found.append(gradients(fresh, fresh, batch))
    assert found[0].keys() == found[1].keys() == dict(model.named_parameters()).keys()
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name])
    model.on = True


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("kind", ["dense", "convolutional"])
def test_gradients_are_those_without_it(kind: str, use_reentrant: bool) -> None:
    model = Checkpointed(dense() if kind == "dense" else convolutional(dropout=0.3), use_reentrant)
    data = vectors if kind == "dense" else images
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step(model, optimizer, data(0))
    assert_same_gradients(model, kind)
    plan = pcn.Switch(model, optimizer, CONFIG).now([data(9)[0]])
    assert len(plan.transformed) == 3
    assert_same_gradients(model, kind)
    step(model, optimizer, data(1))


class AlwaysCheckpointed(nn.Module):
    """Checkpoints in eval mode and without gradients too, where there is nothing to save."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.body, self.use_reentrant = dense(), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.body, 2, x, use_reentrant=self.use_reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")  # torch's, of a pass without gradients
@pytest.mark.parametrize("keep_outputs", [None, 12])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_model_that_checkpoints_without_gradients_too_switches(use_reentrant: bool, keep_outputs: int | None) -> None:
    model = AlwaysCheckpointed(use_reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    config = pcn.PCNConfig(rank=0.5, keep_outputs=keep_outputs, skip_larger=False)
    x, labels = vectors(0)
    plan = pcn.Switch(model, optimizer, config).now([x])
    assert len(plan.transformed) == 3
    found = gradients(model, lambda x: model(x.clone().requires_grad_()), (x, labels))
    expected = gradients(model, model.body, (x, labels))
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.equal(gradient, expected[name])
