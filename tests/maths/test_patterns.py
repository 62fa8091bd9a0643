"""Kernels along patterns of taps: expanding and taking coordinates belong together, however patterns are dealt out."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pcn.maths.patterns import Patterns, contributions, coordinates, expanded, leading_back, of_directions, owners
from pcn.rewriting.patterns import choose

KERNEL = (2, 3)
TAPS = 6


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Patterns, Tensor, Tensor, int]:
    """Patterns that are dealt out at random, coordinates (n, p) along them, and a kernel (n, r, *kernel)."""
    groups, rank, outputs = (draw(st.integers(1, 3)) for _ in range(3))
    count = draw(st.integers(rank, rank * TAPS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    mask = choose(random(groups, rank, TAPS), count).mask
    patterns = Patterns(random(groups * count, *KERNEL), mask)
    return patterns, random(groups * outputs, count), random(groups * outputs, rank, *KERNEL), groups


@settings(max_examples=30, deadline=None)
@given(drawn())
def test_one_is_the_transpose_of_the_other(given: tuple[Patterns, Tensor, Tensor, int]) -> None:
    patterns, along, kernels, groups = given
    made, found = expanded(along, patterns, groups), coordinates(kernels, patterns, groups)
    assert made.shape == kernels.shape
    assert found.shape == along.shape
    torch.testing.assert_close((made * kernels).sum(), (along * found).sum())


@settings(max_examples=30, deadline=None)
@given(drawn())
def test_every_pattern_is_added_to_its_own_direction(given: tuple[Patterns, Tensor, Tensor, int]) -> None:
    patterns, along, kernels, groups = given
    expected = torch.zeros_like(kernels)
    count, rank = along.shape[1], kernels.shape[1]
    of = owners(patterns, groups)
    for row in range(len(along)):
        group = row * groups // len(along)
        for number in range(count):
            expected[row, of[group, number]] += along[row, number] * patterns.taps[group * count + number]
    torch.testing.assert_close(expanded(along, patterns, groups), expected)
    assert of_directions(patterns, groups).shape == (groups, rank, TAPS, *KERNEL)


@settings(max_examples=30, deadline=None)
@given(drawn())
def test_kernels_are_coordinates_times_what_each_contributes(given: tuple[Patterns, Tensor, Tensor, int]) -> None:
    patterns, along, kernels, groups = given
    count, rank = along.shape[1], kernels.shape[1]
    basis = torch.randn(5, rank, dtype=torch.float64)
    for group in range(groups):
        taps = patterns.taps[group * count :][:count], patterns.mask[group * rank :][:rank]
        own = Patterns(*taps)
        expected = expanded(along, own, 1)
        torch.testing.assert_close(torch.einsum("np,pijr->nrij", along, contributions(own)), expected)
        dense = torch.einsum("np,pijm->nmij", along, contributions(own, basis.T))
        torch.testing.assert_close(dense, torch.einsum("nrij,mr->nmij", expected, basis))


@settings(max_examples=30, deadline=None)
@given(drawn())
def test_patterns_that_lead_back_do(given: tuple[Patterns, Tensor, Tensor, int]) -> None:
    patterns, along, _, groups = given
    made = expanded(along, patterns, groups)
    found = coordinates(made, leading_back(patterns, groups), groups)
    torch.testing.assert_close(expanded(found, patterns, groups), made, rtol=1e-6, atol=1e-7)


def test_gradients_are_those_of_the_kernel() -> None:
    torch.manual_seed(0)
    mask = choose(torch.rand(2, 3, TAPS), 7).mask
    patterns = Patterns(torch.randn(14, *KERNEL, dtype=torch.double), mask)
    weight = torch.randn(4, 7, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda each: expanded(each, patterns, 2), weight)


def test_the_best_are_chosen_and_none_goes_without() -> None:
    worth = torch.tensor([[[9.0, 8.0, 7.0], [0.0, 0.0, 1e-9]], [[1.0, 5.0, 1.0], [2.0, 2.0, 3.0]]])
    found = choose(worth, 3)
    assert found.mask.tolist() == [[1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert [each.tolist() for each in found.of] == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 1, 1], [0, 1, 2, 1, 2, 0]]
