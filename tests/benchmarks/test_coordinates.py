"""Other coordinates change neither the network nor what its momentum does; new directions begin with nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pcn
from pcn.nn import PCModule


def built(**options: Any) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 8, 3), nn.Flatten(), nn.Linear(128, 5)
    ).double()
    x = torch.randn(256, 3, 8, 8, dtype=torch.double)
    pcn.compress_(model, [x], pcn.PCNConfig(rank=0.5, exclude=["0"], skip_larger=False, **options))
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
    from peers.coordinates import covariances, of_coordinates, whiten_again_

    model, x = built()
    optimizer = stepped(model, x)
    model.eval()
    expected, halves = model(x), [x[:128], x[128:]]

    def found_now() -> list[Tensor]:
        return [of_coordinates(*item) for item in covariances(model, halves).items()]

    totals = [float(covariance.trace()) for covariance in found_now()]
    whiten_again_(model, optimizer, halves)
    found = found_now()
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


def test_directions_that_are_hardly_heard_give_way_to_those_of_most_variance() -> None:
    from peers.coordinates import covariances, of_coordinates, renew_

    model, x = built()
    optimizer = stepped(model, x)
    layer = next(module for module in model.modules() if isinstance(module, PCModule))
    covariance = covariances(model, [x])[layer]
    heard = of_coordinates(layer, covariance).diagonal() * layer.weight.detach().square().sum((0, 2, 3))
    least = heard.argsort()[:3]  # half of its six
    stay = [at for at in range(6) if at not in least.tolist()]
    without = copy.deepcopy(model).eval()
    before = layer.basis.clone()
    renew_(model, optimizer, [x], 0.5)
    torch.testing.assert_close(layer.basis[:, stay], before[:, stay])
    assert not layer.weight[:, least].any()
    assert not optimizer.state[layer.weight]["momentum_buffer"][:, least].any()
    assert optimizer.state[layer.weight]["momentum_buffer"][:, stay].all()
    crossed = (layer.basis[:, stay].T @ layer.basis[:, least]).abs().max()
    assert crossed < 1e-6 * layer.basis.abs().max()  # they read nothing that was read already
    around = torch.linalg.qr(before[:, stay])[0]
    outside = torch.eye(12, dtype=torch.double) - around @ around.T
    most = torch.linalg.eigvalsh(outside @ covariance @ outside).flip(0)[:3]
    unit = layer.basis[:, least] / layer.basis[:, least].norm(dim=0)
    torch.testing.assert_close((unit.T @ covariance @ unit).diagonal(), most, rtol=1e-4, atol=1e-9)
    with torch.no_grad():  # the network lost what the directions said that are gone, and nothing else
        for one, twin in zip(model.modules(), without.modules(), strict=True):
            if isinstance(one, PCModule):
                twin.weight[one.weight == 0] = 0
        torch.testing.assert_close(model.eval()(x), without(x))


def test_what_is_trained_on_both_sides_is_made_as_large_and_the_function_stays() -> None:
    from peers.coordinates import balance_

    model, x = built(train_basis=True)
    optimizer = stepped(model, x)
    model.eval()
    expected = model(x)
    balance_(model, optimizer)
    for layer in (module for module in model.modules() if isinstance(module, PCModule)):
        along = layer.weight.detach().transpose(0, 1).flatten(1).norm(dim=1)
        torch.testing.assert_close(layer.basis.detach().norm(dim=0), along)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"kernel_rank": 3}, {"train_basis": True}], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_weight_that_a_layer_stands_for_decays(options: dict[str, Any], momentum: float) -> None:
    from peers.coordinates import decay_dense_

    model, x = built(**options)
    layer = model[3]
    with torch.no_grad():
        layer.basis.mul_(torch.linspace(0.5, 3.0, 6))
    twin = copy.deepcopy(model)
    plain, ours = (torch.optim.SGD(each.parameters(), 0.01, momentum, weight_decay=0.1) for each in (twin, model))
    plain.param_groups[0]["weight_decay"] = 0.0  # by hand, as a part of the loss
    decay_dense_(model, ours)
    for _ in range(3):
        penalty = torch.zeros((), dtype=torch.double)
        for module in twin.modules():
            if isinstance(module, PCModule):
                penalty = penalty + torch.einsum("nr...,mr->nm...", module.full_kernel, module.basis).square().sum()
                penalty = penalty + module.bias.square().sum() + module.train_basis * module.mean.square().sum()
            elif not isinstance(module, nn.Sequential):
                penalty = penalty + sum(each.square().sum() for each in module.parameters())
        plain.zero_grad()
        (twin(x).square().mean() + 0.05 * penalty).backward()
        plain.step()
        ours.zero_grad()
        model(x).square().mean().backward()
        ours.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)
