"""Running means of squared gradients in new coordinates: what an optimizer would have gathered there itself, about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.maths.moments import FLOOR, Padding, reads_inside, second_moment_by_variances

WIDTH = 24
SPREAD = torch.logspace(1, -2, WIDTH)  # variances of the inputs' principal components
TURN = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)))[0]
KINDS = ("dense", "behind ReLU", "before a norm", "before a norm, no bias")


@settings(max_examples=20)
@given(
    st.sampled_from([1, 2, 3]), st.sampled_from([(), (3,), (3, 2)]), st.booleans(), st.booleans(), st.integers(0, 99)
)
def test_it_is_exact_where_gradients_do_not_go_with_inputs(
    groups: int, kernel: tuple[int, ...], biased: bool, padded: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.double) + 0.1

    width, outputs, rank = 5, 4, 3
    inputs, mean = numbers(groups, width), numbers(groups * width) - 0.5
    ones = [1] * len(kernel)
    squares = numbers(groups * outputs)  # of the outputs' gradients
    everywhere = squares.reshape(-1, 1, *ones).expand(-1, 1, *kernel)
    variances = numbers(groups, rank)
    of_inputs = inputs + mean.reshape(groups, width).square()
    moment = everywhere * of_inputs.repeat_interleave(outputs, 0).reshape(-1, width, *ones)
    bias = (
        squares if biased and not (padded and kernel) else None
    )  # which tells what the mean brought in only where all is read
    spread = variances + FLOOR * variances.mean(1, keepdim=True)
    expected = everywhere * spread.repeat_interleave(outputs, 0).reshape(-1, rank, *ones)
    padding = None
    if padded and kernel:
        padding = Padding(numbers(groups, rank), numbers(*kernel).clamp_max(1))
        of_padding = padding.centre.square().repeat_interleave(outputs, 0).reshape(-1, rank, *ones)
        moment = moment * padding.inside  # beside the image x is zero, and z is -c
        expected = expected * padding.inside + everywhere * of_padding * (1 - padding.inside)
    given = moment, bias, mean, variances, inputs.sum(1)
    found, of_mean = second_moment_by_variances(*given, centred=False, padding=padding)
    torch.testing.assert_close(found, expected)
    assert of_mean is None
    if padding is None:  # where the mean is not taken off, directions read it as they lie to it
        within = numbers(groups, rank) - 0.5
        given = moment, bias, mean, variances + within.square(), inputs.sum(1)
        of_mean = everywhere * within.square().repeat_interleave(outputs, 0).reshape(-1, rank, *ones)
        found = second_moment_by_variances(*given, centred=False, within=within)
        torch.testing.assert_close(found, (expected, of_mean))


def network(kind: str) -> tuple[nn.Sequential, str]:
    """A network, and the layer of it that is looked at."""
    first, relu, last = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(8, 1)
    if kind == "dense":
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), last), "0"
    norm = nn.BatchNorm1d(8) if "norm" in kind else nn.Identity()
    return nn.Sequential(first, relu, nn.Linear(WIDTH, 8, bias="no bias" not in kind), norm, nn.Tanh(), last), "2"


def gather(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Callable[[int], Tensor]) -> None:
    """Go over the same batches, with an optimizer that stands still."""
    torch.manual_seed(1)
    for _ in range(300):
        optimizer.zero_grad()
        (model(inputs(32)) - torch.randn(32, 1)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("sized_for", ["sgd", "adam"])
@pytest.mark.parametrize("mean", [0.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_adam_would_have_gathered_in_the_new_coordinates(
    kind: str, mean: float, sized_for: Any, centred: bool
) -> None:
    """Adam that stands still goes over the same numbers before and after: U∘U is wrong a hundredfold here."""
    torch.manual_seed(0)
    model, name = network(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)

    def inputs(count: int) -> Tensor:
        return torch.randn(count, WIDTH) * SPREAD.sqrt() @ TURN.T + mean

    gather(model, optimizer, inputs)
    stats = pcn.analyze(model, [inputs(2000)])
    rule = pcn.LayerRule(rank=12, centred=centred)
    only = pcn.PCNConfig(layers={name: rule}, rank=None, skip_larger=False, sized_for=sized_for)
    pcn.make_plan(model, stats, only).apply_(model, stats, optimizer=optimizer)
    weight = model.get_submodule(name).weight
    carried = optimizer.state[weight]["exp_avg_sq"].clone()
    optimizer.state.clear()
    gather(model, optimizer, inputs)
    ratio = (carried / optimizer.state[weight]["exp_avg_sq"]).median(0).values
    assert ratio.min() > (0.5 if centred else 0.4)
    assert ratio.max() < (2.0 if mean == 0 or "norm" in kind else 4.0)  # what the mean brought in is not sure


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("how", [{}, {"kernel_rank": 4}, {"keep_outputs": 6}])
def test_a_large_mean_before_a_norm_is_told_apart(how: dict[str, int], bias: bool) -> None:
    """A norm takes what it brings off again, in patterns of taps and where inputs are dropped too."""
    torch.manual_seed(0)
    first, norm = nn.Conv2d(6, 12, 3), nn.BatchNorm2d(8)
    layers = first, nn.Softplus(), nn.Conv2d(12, 8, 3, bias=bias), norm, nn.Tanh(), nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 1))
    nn.init.constant_(first.bias, 3)
    optimizer, turn = torch.optim.Adam(model.parameters(), lr=0.0), torch.randn(6, 6)

    def images(count: int) -> Tensor:
        return torch.einsum("nchw,cd->ndhw", torch.randn(count, 6, 7, 7), turn)

    gather(model, optimizer, images)
    stats = pcn.analyze(model, [images(300)])
    reader = pcn.LayerRule(rank=6, centred=False, kernel_rank=how.get("kernel_rank"))
    rules = {"0": pcn.LayerRule(keep_outputs=how.get("keep_outputs")), "2": reader}
    config = pcn.PCNConfig(rank=None, layers=rules, skip_larger=False)
    pcn.make_plan(model, stats, config).apply_(model, stats, optimizer=optimizer)
    carried = optimizer.state[model[2].weight]["exp_avg_sq"].clone()
    optimizer.state.clear()
    gather(model, optimizer, images)
    found = optimizer.state[model[2].weight]["exp_avg_sq"]
    ratio = (carried / found).reshape(8, carried.shape[1], -1).mean(2).median(0).values
    assert ratio.min() > 0.1
    assert ratio.max() < 2


@settings(max_examples=30, deadline=None)
@given(st.tuples(*[st.integers(1, n) for n in (7, 3, 3, 2, 2, 2)]))
def test_reads_on_an_image_are_counted_as_a_convolution_makes_them(sizes: tuple[int, ...]) -> None:
    size, taps, stride, before, dilation, spatial = sizes
    if size + 2 * before <= dilation * (taps - 1):
        return
    run = {1: nn.functional.conv1d, 2: nn.functional.conv2d}[spatial]
    image, kernel = (torch.ones(1, 1, *[n] * spatial, dtype=torch.double) for n in (size, taps))
    kernel.requires_grad_()
    read = run(image, kernel, None, stride, before, dilation)
    (found,) = torch.autograd.grad(read.sum(), kernel)
    inside = reads_inside(*([each] * spatial for each in (size, taps, stride, (before, before), dilation)))
    torch.testing.assert_close(inside, found[0, 0] / read.numel())


@pytest.mark.parametrize("padding", [0, 1])
def test_it_is_not_far_too_small_for_convolutions_either(padding: int) -> None:
    """Steps that are divided by too little are too large."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 12, 3, padding=padding),
        nn.ReLU(),
        nn.Conv2d(12, 8, 3, padding=padding),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    turn = torch.randn(4, 4)

    def images(count: int) -> Tensor:
        return torch.einsum("nchw,cd->ndhw", torch.randn(count, 4, 6, 6), turn) + 1

    gather(model, optimizer, images)
    stats = pcn.analyze(model, [images(200)])
    config = pcn.PCNConfig(rank=1.0, skip_larger=False)
    pcn.make_plan(model, stats, config).apply_(model, stats, optimizer=optimizer)
    weights = [model[0].weight, model[2].weight, model[6].weight]
    carried = [optimizer.state[weight]["exp_avg_sq"].clone() for weight in weights]
    optimizer.state.clear()
    gather(model, optimizer, images)
    for weight, estimate in zip(weights, carried, strict=True):
        ratio = (estimate / optimizer.state[weight]["exp_avg_sq"]).flatten()
        assert ratio.quantile(0.05) > 1 / 16
        assert 0.25 < ratio.median() < 4.0


@pytest.mark.parametrize("normed", [False, True])
def test_zeros_around_images_of_a_large_mean_count(normed: bool) -> None:
    """They stand for minus the mean: a direction along which nothing varies reads much there."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6) if normed else nn.Identity()
    layers = nn.Conv2d(8, 6, 3, padding=1, bias=not normed), norm, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(6, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    turn = torch.randn(8, 8) * torch.logspace(0, -2, 8)[:, None]

    def images(count: int) -> Tensor:
        return torch.einsum("nchw,cd->ndhw", torch.randn(count, 8, 6, 6), turn) + 2

    gather(model, optimizer, images)
    stats = pcn.analyze(model, [images(200)])
    pcn.make_plan(model, stats, pcn.PCNConfig(rank=1.0, skip_larger=False, exclude=["5"])).apply_(
        model, stats, optimizer=optimizer
    )
    estimate = optimizer.state[model[0].weight]["exp_avg_sq"].clone()
    optimizer.state.clear()
    gather(model, optimizer, images)
    ratio = estimate.mean((0, 2, 3)) / optimizer.state[model[0].weight]["exp_avg_sq"].mean((0, 2, 3))
    assert ratio.min() > 0.3
    assert ratio.max() < 10  # without a norm it is not sure what the mean brought in
