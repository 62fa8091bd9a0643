"""A budget of operations is one of the whole model, also of what no rank can change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pcn
from pcn.costs.count import flops_per_sample
from pcn.planner.prices import operations
from pcn.planner.question import Question
from pcn.planner.reachable import check_reachable
from pcn.running.example import Example
from small import Branching, vectors


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.down = nn.Embedding(60, 32), nn.Linear(32, 96), nn.Linear(96, 32)
        self.head = nn.Linear(32, 60, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        return self.head(x + self.down(torch.tanh(self.up(x))))


class Attending(nn.Module):
    """Projections that attention uses without calling them, and products of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(16, 32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(x)))


def normed() -> nn.Module:
    """One layer has a parametrised weight."""
    weights = nn.utils.parametrizations.weight_norm(nn.Linear(16, 64))
    return nn.Sequential(weights, nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def transposed() -> nn.Module:
    """A transposed convolution between plain ones."""
    up = nn.ConvTranspose2d(32, 16, 2, 2)
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), up, nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))


class Mapped(nn.Module):
    """Layers are called on one sample at a time, and run on all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda sample: self.second(torch.relu(self.first(sample))))(x)


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor, float]] = {
    "tied": (Tied, torch.arange(192).reshape(16, 12) % 60, 0.5),
    "weight norm": (normed, torch.randn(64, 16), 0.7),
    "transposed": (transposed, torch.randn(8, 3, 8, 8), 0.9),
    "attention": (Attending, torch.randn(8, 10, 16), 0.8),
    "vmap": (Mapped, torch.randn(64, 16), 0.6),
}


@pytest.mark.parametrize(("make", "batch", "share"), CASES.values(), ids=CASES)
def test_the_whole_model_stays_within_it(make: Callable[[], nn.Module], batch: Tensor, share: float) -> None:
    torch.manual_seed(0)
    model = make().eval()
    before = flops_per_sample(model, batch)
    plan = pcn.compress_(model, [batch], pcn.Budget(flops=share, step=2))
    assert plan.transformed
    after = flops_per_sample(model, batch)
    assert 0.6 * share * before < after <= share * before
    again = make().eval()
    pcn.compress_(again, [batch], pcn.Budget(flops=round(share * before), step=2))  # as an amount
    assert flops_per_sample(again, batch) == after


@pytest.mark.parametrize(("make", "batch", "share"), CASES.values(), ids=CASES)
def test_what_cannot_be_met_is_known_early(make: Callable[[], nn.Module], batch: Tensor, share: float) -> None:
    model = make().eval()
    stats, graph = pcn.analyze(model, [batch]), pcn.trace(model, batch)
    budget, said = pcn.Budget(flops=0.05), []
    for ask in (
        lambda: check_reachable(model, budget, example=Example.of(batch)),
        lambda: Question.of(model, stats, budget, graph, None),
    ):
        with pytest.raises(pcn.ConfigError, match=r"the least would be [\d,]+ FLOPs") as refused:
            ask()
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_where_a_model_cannot_run_without_values_its_layers_count() -> None:
    assert operations(Branching(), Example.of(vectors(4))) is None
    assert operations(nn.Linear(3, 2), None) is None
    assert operations(nn.Linear(3, 2), Example.of(torch.ones(5, 3))) == 12


def test_another_example_than_that_of_the_statistics_counts_by_its_own_samples() -> None:
    torch.manual_seed(0)
    model, batch = normed(), torch.randn(64, 16)
    stats = pcn.analyze(model, [batch])
    stats.example = None
    plan = pcn.make_plan(model, stats, pcn.Budget(flops=13_000, step=2), example=torch.randn(7, 16))
    small = pcn.make_plan(model, pcn.analyze(model, [batch]), pcn.Budget(flops=13_000, step=2))
    assert {name: layer.rank for name, layer in plan.layers.items()} == {
        name: layer.rank for name, layer in small.layers.items()
    }
