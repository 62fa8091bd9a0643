"""How far subspaces move: nothing for the same ones, everything for orthogonal ones, the angle in between."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.statistics import forms
from pcn.statistics.sketch import Sketch
from pcn.switching.movement import leading_subspaces, movement

ONE = pcn.PCNConfig(rank=1)
seeds = st.integers(0, 2**16)


def moved(before: Tensor, after: Tensor, layer: nn.Module, config: pcn.PCNConfig) -> float:
    """How far the subspaces of a layer's input move from one set of samples to another."""
    model = nn.Sequential(layer)
    first, second = (pcn.analyze(model, [x]) for x in (before, after))
    return movement(leading_subspaces(first, config), second, config)


def samples(axes: Tensor, variances: Tensor) -> Tensor:
    """Samples whose covariance has exactly these axes (m, r) as eigenvectors, around a mean that is not zero."""
    noise = torch.randn(8 * axes.shape[1], axes.shape[1], dtype=torch.double)
    white = torch.linalg.qr(noise - noise.mean(0)).Q * math.sqrt(len(noise) - 1)
    return ((white * variances.sqrt()) @ axes.T + 3).float()


def axes(width: int, rank: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, width, dtype=torch.double, generator=generator)).Q[:, :rank]


@settings(max_examples=20)
@given(seeds, st.floats(0, math.pi / 2))
def test_a_direction_that_turns_moves_by_the_square_of_the_sine(seed: int, angle: float) -> None:
    u, v = axes(6, 2, seed).unbind(1)
    turned = math.cos(angle) * u + math.sin(angle) * v
    scale = torch.ones(1).double()
    found = moved(samples(u[:, None], scale), samples(turned[:, None], 3 * scale), nn.Linear(6, 2), ONE)
    assert found == pytest.approx(math.sin(angle) ** 2, abs=2e-6)


@settings(max_examples=20)
@given(seeds, st.integers(1, 4), st.integers(1, 4))
def test_the_same_subspace_has_not_moved_and_an_orthogonal_one_has_wholly(seed: int, first: int, second: int) -> None:
    every = axes(9, first + second, seed)
    variances = torch.linspace(3, 1, first + second).double()
    layer, config = nn.Linear(9, 2), pcn.PCNConfig(rank=pcn.ExplainedVariance(1 - 1e-6))
    here, there = samples(every[:, :first], variances[:first]), samples(every[:, first:], variances[first:])
    assert moved(here, here, layer, config) == 0
    assert moved(here, there, layer, config) == pytest.approx(1, abs=1e-5)


@settings(max_examples=20)
@given(seeds, st.integers(1, 5))
def test_axes_within_the_subspace_do_not_matter(seed: int, rank: int) -> None:
    torch.manual_seed(seed)
    model, config = nn.Sequential(nn.Linear(8, 2)), pcn.PCNConfig(rank=rank)
    first, second = (pcn.analyze(model, [torch.randn(40, 8) @ torch.randn(8, 8)]) for _ in range(2))
    directions = leading_subspaces(first, config)
    turned = {key: u @ axes(rank, rank, seed).float() for key, u in directions.items()}
    assert movement(turned, second, config) == pytest.approx(movement(directions, second, config), abs=1e-5)
    assert 0 <= movement(directions, second, config) <= 1 + 1e-6


def test_groups_count_by_their_variance() -> None:
    """The first group stands still with variance 3; in the second one, variance 1 turns by 60 degrees."""
    layer = nn.Conv2d(8, 4, 1, groups=2)
    u, v = axes(4, 2, 0).unbind(1)
    still, angle = samples(axes(4, 1, 1), torch.tensor([3.0]).double()), math.pi / 3
    turned = math.cos(angle) * u + math.sin(angle) * v
    before, after = (
        torch.cat([still, samples(axis[:, None], torch.ones(1).double())], 1).view(-1, 8, 1, 1) for axis in (u, turned)
    )
    assert moved(before, after, layer, ONE) == pytest.approx(0.75 / 4, abs=1e-5)


class Branches(nn.Module):
    """``left`` and ``right`` read the model's input; ``last`` reads what depends on ``scale``."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x) + self.last(x * self.scale)


def branches_before_and_after() -> tuple[nn.Module, pcn.Statistics, pcn.Statistics]:
    model, x = Branches(), torch.randn(60, 6) * torch.tensor([4.0, 3.0, 2.0, 1.0, 0.1, 0.1])
    first = pcn.analyze(model, [x])
    nn.init.normal_(model.scale)
    return model, first, pcn.analyze(model, [x])


def test_an_input_that_stands_still_does_not_count() -> None:
    _, first, second = branches_before_and_after()
    only = pcn.PCNConfig(rank=None, layers={"last": pcn.LayerRule(rank=2)})
    everything = pcn.PCNConfig(rank=2)
    alone = movement(leading_subspaces(first, only), second, only)
    assert alone > 0.01
    assert movement(leading_subspaces(first, everything), second, everything) == alone


def test_an_activation_is_watched_for_the_readers_that_ask_for_a_rank() -> None:
    _, first, _ = branches_before_and_after()
    assert first.layers["right"] == "left"

    def watched(**options: object) -> dict[str, int]:
        return {key: u.shape[1] for key, u in leading_subspaces(first, pcn.PCNConfig(**options)).items()}

    rules = {"right": pcn.LayerRule(rank=2), "left": pcn.LayerRule(rank=None)}
    assert watched(rank=None, layers=rules) == {"left": 2}
    for reader in ("left", "right"):
        assert watched(rank=1, layers={reader: pcn.LayerRule(rank=4)}) == {"left": 4, "last": 1}
    assert watched(rank=3, exclude=("last",)) == {"left": 3}
    assert watched(rank=6) == {}  # all of the space: it cannot move
    assert watched(rank=None).keys() == {"left", "last"}  # as with a budget: 95% of the variance


def test_a_sketch_of_a_wide_input_tells_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 20)
    monkeypatch.setattr(forms, "LARGEST_COVARIANCE", 20)
    monkeypatch.setattr("pcn.statistics.samples.SAMPLES_BYTES", 0)
    layer, variances = nn.Linear(60, 2), torch.tensor([5.0, 4.0, 3.0]).double()
    every = axes(60, 6, 0)
    here, there = (samples(part, variances) for part in (every[:, :3], every[:, 2:5]))
    config = pcn.PCNConfig(rank=3)
    assert isinstance(pcn.analyze(nn.Sequential(layer), [here]).moments["0"], Sketch)
    assert moved(here, here, layer, config) == 0
    assert moved(here, there, layer, config) == pytest.approx((4 + 3) / 12, abs=1e-5)
