"""Convolutions along directions of patches: all of them change nothing, and fewer are those of most worth."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pcn.costs.count import flops_per_sample


def built() -> tuple[nn.Sequential, Tensor, torch.optim.SGD]:
    """A network that has made two steps, its input, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=1, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 1, bias=False),
        nn.Flatten(),
        nn.Linear(64, 5),
    ).double()
    x = torch.randn(64, 3, 8, 8, dtype=torch.double)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(2):
        step(model, optimizer, x)
    return model, x, optimizer


def step(model: nn.Module, optimizer: torch.optim.SGD, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def looked_at(model: nn.Sequential, x: Tensor, *, separable: bool) -> dict[str, Any]:
    from peers.patches import look, patch_covariances

    layers = {name: model.get_submodule(name) for name in ("2", "5")}
    found = patch_covariances(model, layers, [x[:32], x[32:]])
    return {name: look(layers[name], covariance, separable=separable) for name, covariance in found.items()}


@pytest.mark.parametrize("separable", [False, True])
def test_all_directions_change_nothing(separable: bool) -> None:
    from peers.patches import PatchConv2d, put_

    model, x, optimizer = built()
    expected, found = copy.deepcopy(model)(x), looked_at(model, x, separable=separable)
    for name, each in found.items():
        put_(model, name, each, torch.arange(len(each.worth)), optimizer)
    assert sum(isinstance(layer, PatchConv2d) for layer in model.modules()) == 2
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)
    assert {p for group in optimizer.param_groups for p in group["params"]} == set(model.parameters())


@pytest.mark.parametrize("separable", [False, True])
def test_directions_are_orthonormal_and_coordinates_of_the_same_variance(separable: bool) -> None:
    from peers.patches import patch_covariances, put_

    model, x, optimizer = built()
    covariance = patch_covariances(model, {"2": model[2]}, [x])["2"]
    found = looked_at(model, x, separable=separable)["2"]
    torch.testing.assert_close(found.vectors.T @ found.vectors, torch.eye(54, dtype=torch.double))
    put_(model, "2", found, found.worth.argsort(descending=True)[:10], optimizer)
    variances = torch.einsum("nw,wv,nv->n", model[2].patches, covariance, model[2].patches)
    torch.testing.assert_close(variances, variances.mean().expand(10), rtol=0.1, atol=0)


def test_the_momentum_moves_the_kernel_as_gradient_descent_in_the_new_coordinates_would() -> None:
    """Of a gradient G by the kernel, G along is the one by the coordinates."""
    from peers.patches import put_

    model, x, optimizer = built()
    momentum = optimizer.state[model[2].weight]["momentum_buffer"].clone()
    found = looked_at(model, x, separable=True)["2"]
    put_(model, "2", found, torch.arange(20), optimizer)
    kernel = torch.zeros(8, 54, dtype=torch.double, requires_grad=True)
    coordinates = torch.zeros(8, 20, dtype=torch.double, requires_grad=True)
    ((kernel + coordinates @ model[2].patches) * momentum.flatten(1)).sum().backward()
    torch.testing.assert_close(optimizer.state[model[2].weight]["momentum_buffer"], coordinates.grad)


def test_worth_is_the_share_of_the_response_that_is_lost_without() -> None:
    from peers.patches import patch_covariances, put_

    model, x, optimizer = built()
    covariance = patch_covariances(model, {"2": model[2]}, [x])["2"]
    found = looked_at(model, x, separable=False)["2"]

    def response(kernel: Tensor) -> float:
        return float(torch.einsum("ow,wv,ov->", kernel.detach(), covariance, kernel.detach()))

    whole, which = response(model[2].weight.flatten(1)), torch.tensor([0, 3, 5])
    put_(model, "2", found, which, optimizer)
    kept = response(model[2].weight @ model[2].patches)
    assert kept / whole == pytest.approx(float(found.worth[which].sum()))


@given(st.data())
def test_directions_are_taken_by_worth_for_their_price_within_the_room(data: st.DataObject) -> None:
    from peers.patches import choose

    widths = data.draw(st.lists(st.integers(4, 12), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    worth = {str(i): torch.rand(width, generator=generator) for i, width in enumerate(widths)}
    prices = {name: data.draw(st.integers(1, 5)) for name in worth}
    whole = sum(prices[name] * len(each) for name, each in worth.items())
    room = data.draw(st.integers(whole // 3, whole))
    even = data.draw(st.booleans())
    chosen = choose(worth, prices, room, 0.25, even=even)
    used = sum(prices[name] * len(which) for name, which in chosen.items())
    assert used <= room
    for name, which in chosen.items():
        left_out = set(range(len(worth[name]))) - set(which.tolist())
        assert all(worth[name][i] <= worth[name][which].min() for i in left_out)
        assert even or len(which) >= int(0.25 * len(worth[name]))
    if not even and used < room - max(prices.values()):  # nothing is left that would have fitted
        assert used == whole


def test_a_run_is_taken_up_again_with_the_shape_that_was_chosen() -> None:
    from peers.patches import PatchConv2d, PatchSwitch, put_

    model, x, optimizer = built()
    for name, each in looked_at(model, x, separable=True).items():
        put_(model, name, each, torch.arange(5), optimizer)
    fresh, _, others = built()
    switch = PatchSwitch.__new__(PatchSwitch)
    switch.model, switch.optimizer = fresh, others
    switch.rebuild_({"ranks": {"2": 5, "5": 5}})
    fresh.load_state_dict(model.state_dict())
    assert sum(isinstance(layer, PatchConv2d) for layer in fresh.modules()) == 2
    torch.testing.assert_close(fresh(x), model(x))
    assert {p for group in others.param_groups for p in group["params"]} == set(fresh.parameters())


@pytest.mark.parametrize("plain", [False, True])
def test_own_directions_of_every_output_change_nothing_when_all_are_kept(plain: bool) -> None:
    from peers.own_patches import as_it_is, put_
    from peers.patches import patch_covariances

    model, x, optimizer = built()
    expected, found = copy.deepcopy(model)(x), looked_at(model, x, separable=True)
    if plain:
        layers = {name: model.get_submodule(name) for name in found}
        found = {name: as_it_is(each) for name, each in patch_covariances(model, layers, [x]).items()}
    for name, each in found.items():
        put_(model, name, each, len(each.worth), optimizer)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)
    assert {p for group in optimizer.param_groups for p in group["params"]} == set(model.parameters())
    assert flops_per_sample(model, x[:1]) == flops_per_sample(built()[0], x[:1])  # kernels are made once


def test_every_output_keeps_the_coordinates_along_which_it_responds_most_and_trains_no_others() -> None:
    from peers.own_patches import put_
    from peers.patches import patch_covariances

    model, x, optimizer = built()
    layer, covariance = model[2], patch_covariances(model, {"2": model[2]}, [x])["2"]
    found = looked_at(model, x, separable=True)["2"]
    before = layer.weight.detach().flatten(1) @ found.vectors  # (8, 54), along directions of length one
    responses = before.square() * (found.vectors * (covariance @ found.vectors)).sum(0)
    put_(model, "2", found, 10, optimizer)
    assert model[2].weight.shape == (8, 10)
    for kept, response in zip(model[2].chosen, responses, strict=True):
        assert set(kept.tolist()) == set(response.topk(10).indices.tolist())
    step(model, optimizer, x)
    along = model[2].weight.new_zeros(8, 54).scatter(1, model[2].chosen, model[2].weight)
    assert int((along != 0).sum()) == 80
