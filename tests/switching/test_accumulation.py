"""A switch between micro-batches: the gradients gathered so far go along, scaled or not, and so does the scaler."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pcn
from new_coordinates import MODELS, NewCoordinates, batch, loss_of
from pcn.config import ORDERS
from switching.loop import CONFIG, convolutional, dense, images, step, vectors


def dropping(order: str) -> pcn.PCNConfig:
    rules = {"0": pcn.LayerRule(rank=0.5, keep_outputs=4)}
    return pcn.PCNConfig(rank=0.6, layers=rules, order=order, skip_larger=False)


@pytest.mark.parametrize("with_optimizer", [True, False])
@pytest.mark.parametrize("order", [None, *ORDERS])
@pytest.mark.parametrize("kind", MODELS)
def test_half_before_and_half_after_is_the_whole_in_the_new_coordinates(
    kind: str, order: str | None, with_optimizer: bool
) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if with_optimizer else None
    (loss_of(model, batch(kind, 0)) / 2).backward()
    parent = copy.deepcopy(model)
    config = CONFIG if order is None else dropping(order)
    plan = pcn.Switch(model, optimizer, config).now([batch(kind, 9, 64)[0]])
    first = NewCoordinates(kind, plan, model).gradients(parent, batch(kind, 0))
    second = dict(model.named_parameters())
    second = dict(zip(second, torch.autograd.grad(loss_of(model, batch(kind, 1)), list(second.values())), strict=True))
    (loss_of(model, batch(kind, 1)) / 2).backward()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    if optimizer:
        optimizer.step()
    for name, parameter in model.named_parameters():
        mean = (first[name] + second[name]) / 2
        torch.testing.assert_close(parameter.grad, mean, rtol=1e-10, atol=1e-14)
        expected = weights[name] - 0.1 * mean if optimizer else weights[name]
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-10, atol=1e-14)


def test_parameters_without_a_gradient_get_none() -> None:
    model = dense()
    model[2].bias.grad = torch.ones_like(model[2].bias)
    pcn.Switch(model, None, CONFIG).now([vectors(0)[0]])
    assert torch.equal(model[2].bias.grad, torch.ones(24))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "2.bias")


def test_sparse_gradients_of_an_embedding_go_along() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.hidden, self.head = nn.Embedding(20, 12, sparse=True), nn.Linear(12, 8), nn.Linear(8, 4)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.hidden(self.table(words))))

    model, words = Words(), torch.randint(20, (40,))
    config = pcn.PCNConfig(rank=0.5, layers={"hidden": pcn.LayerRule(rank=0.5, keep_outputs=5)}, skip_larger=False)
    F.cross_entropy(model(words), words % 4).backward()
    before = model.table.weight.grad.to_dense()
    pcn.Switch(model, None, config).now([words])
    assert torch.equal(model.table.weight.grad.to_dense(), before)


def scaled_step(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, seed: int) -> None:
    optimizer.zero_grad()
    inputs, labels = images(seed)
    scaler.scale(F.cross_entropy(model(inputs), labels)).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_gradient_scaler_goes_on_where_it_was(kind: type[torch.optim.Optimizer]) -> None:
    """With a scale that is a power of two, a scaled run is the plain one to the last bit."""
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    runs = []
    for scaled in (True, False):
        torch.manual_seed(0)
        model = convolutional()
        optimizer = kind(model.parameters(), lr=0.05, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=4, enabled=scaled)
        for seed in range(3):
            scaled_step(model, optimizer, scaler, seed)
        before = scaler.state_dict()
        pcn.Switch(model, optimizer, CONFIG).now([images(9)[0]])
        assert scaler.state_dict() == before
        for seed in range(3, 6):
            scaled_step(model, optimizer, scaler, seed)
        if scaled:
            assert scaler.get_scale() == 2.0**9  # it grew after the fourth step, as if nothing had happened
        runs.append(model)
    for one, other in zip(*(run.state_dict().values() for run in runs), strict=True):
        assert torch.equal(one, other)


def test_a_step_with_infinite_gradients_is_skipped_after_the_switch_too() -> None:
    model = dense()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    step(model, optimizer, vectors(0))
    pcn.Switch(model, optimizer, CONFIG).now([vectors(9)[0]])
    before = copy.deepcopy(model.state_dict())
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(vectors(1)[0]), vectors(1)[1]) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**7
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(vectors(1)[0]), vectors(1)[1])).backward()
    scaler.step(optimizer)
    assert not torch.equal(before["2.weight"], model.state_dict()["2.weight"])


def test_gradients_gathered_under_a_scale_are_unscaled_once_for_all() -> None:
    """Half of the micro-batches before the switch, half after it, then unscaled and clipped."""
    runs = []
    for scale in (1.0, 2.0**6):
        torch.manual_seed(0)
        model = dense()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        switch = pcn.Switch(model, optimizer, CONFIG)
        for seed in range(4):
            if seed == 2:
                switch.now([vectors(9)[0]])
            scaler.scale(F.cross_entropy(model(vectors(seed)[0]), vectors(seed)[1]) / 4).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        runs.append([norm, *model.state_dict().values()])
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_trained_under_autocast_switches(dtype: torch.dtype) -> None:
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    switch = pcn.Switch(model, optimizer, CONFIG, at=2)
    losses = []
    for epoch in range(1, 7):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(model(images(0)[0]), images(0)[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        switch.after_epoch(epoch, [images(9)[0]])
    assert switch.plan is not None
    assert losses[-1] < losses[1] < losses[0]
    assert all(p.dtype == torch.float32 for p in model.parameters())
