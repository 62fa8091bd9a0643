"""Other coordinates change neither the network nor what its momentum does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pcn
from pcn.nn import PCModule


def built() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 8, 3), nn.Flatten(), nn.Linear(128, 5)
    ).double()
    x = torch.randn(256, 3, 8, 8, dtype=torch.double)
    pcn.compress_(model, [x], pcn.PCNConfig(rank=0.5, exclude=["0"], skip_larger=False))
    return model, x


def stepped(model: nn.Sequential, x: Tensor) -> torch.optim.SGD:
    """An optimizer that has made two steps."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return optimizer


def test_the_function_stays_and_variances_are_the_same() -> None:
    from peers.coordinates import _covariances, whiten_again_

    model, x = built()
    optimizer = stepped(model, x)
    model.eval()
    expected, halves = model(x), [x[:128], x[128:]]
    totals = [float(covariance.trace()) for covariance in _covariances(model, halves).values()]
    whiten_again_(model, optimizer, halves)
    found = list(_covariances(model, halves).values())
    assert len(found) == 2
    for covariance, total in zip(found, totals, strict=True):
        level = total / len(covariance)
        flat = level * torch.eye(len(covariance), dtype=torch.double)
        torch.testing.assert_close(covariance, flat, rtol=0.05, atol=0.05 * level)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)  # running statistics included


def test_weights_are_as_large_as_asked_for() -> None:
    from peers.coordinates import resize_

    model, x = built()
    optimizer = stepped(model, x)
    model.eval()
    expected, squares = model(x), {"3": 0.5, "5": 2.0}
    resize_(model, optimizer, squares)
    for name, square in squares.items():
        assert float(model.get_submodule(name).weight.detach().square().mean()) == pytest.approx(square)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)


def test_momentum_goes_along() -> None:
    """What the momentum alone would do to the layer's response is what its whitening makes of it."""
    from peers.coordinates import whiten_again_

    model, x = built()
    optimizer = stepped(model, x)
    moved = copy.deepcopy(model)
    layer, twin = (next(m for m in net.modules() if isinstance(m, PCModule)) for net in (model, moved))
    old = optimizer.state[layer.weight]["momentum_buffer"].clone()
    whiten_again_(model, optimizer, [x])
    new = optimizer.state[layer.weight]["momentum_buffer"]
    turn = torch.linalg.lstsq(twin.basis, layer.basis).solution  # U' = U turn
    torch.testing.assert_close(new, torch.einsum("nr...,rq->nq...", old, turn), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        torch.einsum("nr...,rq->nq...", layer.weight, turn.T), twin.weight, rtol=1e-6, atol=1e-9
    )  # W~' turnᵀ = W~
