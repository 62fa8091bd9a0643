"""Sizes and numbers of channels that are written into a model's code come to light before anything is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pcn
from graph.coupling import Wired
from pcn import LayerRule, PCNConfig
from pcn.errors import ConfigError, PlanError, TraceError
from pcn.graph import check_couplings, trace
from pcn.plans.plan import Cut
from pcn.plans.skeleton import skeleton
from pcn.running.example import Example

IMAGES = (4, 3, 6, 6)


def network(between: Callable[[Any, Tensor], Tensor]) -> Wired:
    """a (8 channels), something that should pass them on, b."""
    parts = {"a": nn.Conv2d(3, 8, 3, padding=1), "b": nn.Conv2d(8, 4, 3, padding=1), "c": nn.Linear(4, 3)}
    return Wired(lambda m, x: m.c(m.b(between(m, m.a(x))).mean((2, 3))), **parts)


def check(model: nn.Module, kept: tuple[int, ...]) -> None:
    """Drop channels of ``a`` from an empty copy of the model and hold it against the model."""
    example = Example.of(torch.randn(IMAGES))
    graph = trace(model, example)
    classes = graph.tensors["a.weight"][0]
    dropped = torch.zeros(graph.class_count, dtype=torch.bool)
    dropped[classes] = True
    dropped[classes[list(kept)]] = False
    slices = {
        name: {
            dim: Cut(len(c), tuple((~dropped[c]).nonzero().flatten().tolist()))
            for dim, c in enumerate(tensor)
            if dropped[c].any()
        }
        for name, tensor in graph.tensors.items()
    }
    check_couplings(skeleton(model, slices), example, graph, dropped)


HARD_CODED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "view": lambda m, x: x.view(-1, 8, 6, 6),
    "flattened view": lambda m, x: x.view(-1, 8 * 36).tanh().view(x.shape),
    "batch swallows it": lambda m, x: x.reshape(-1, 4, 6, 6).tanh().reshape(x.shape),
    "split sizes": lambda m, x: torch.cat([part.tanh() for part in x.split([4, 4], 1)], 1),
    "chunks of a number": lambda m, x: torch.cat([part.tanh() for part in x.split(3, 1)], 1),
    "doubled below a number": lambda m, x: torch.cat([x[:, :3] * 2, x[:, 3:]], 1),
    "swapped at a number": lambda m, x: torch.cat([x[:, 5:], x[:, :5]], 1),
    "changed in place": lambda m, x: _add_below(x),
    "another way when narrow": lambda m, x: x if x.shape[1] == 8 else x.tanh(),
    "divided by its width": lambda m, x: x / x.shape[1],
    "scaled by its width": lambda m, x: x * x.shape[1] ** -0.5,
    "divided by a tensor of its width": lambda m, x: x / torch.tensor(x.shape[1]),
    "filled with its width": lambda m, x: x + torch.full((), x.shape[1]),
    "asserted": lambda m, x: _asserted(x),
}


def _add_below(x: Tensor) -> Tensor:
    x[:, :3].add_(1.0)
    return x


def _asserted(x: Tensor) -> Tensor:
    assert x.shape[1] == 8
    return x


@pytest.mark.parametrize("name", HARD_CODED)
def test_sizes_in_the_code_are_found(name: str) -> None:
    with pytest.raises((PlanError, TraceError)):
        check(network(HARD_CODED[name]), kept=(1, 2, 5, 6))


@pytest.mark.parametrize("name", HARD_CODED)
def test_a_plan_keeps_such_channels_with_the_reason(name: str) -> None:
    model = network(HARD_CODED[name])
    stats = pcn.analyze(model, [torch.randn(IMAGES)])
    plan = pcn.make_plan(model, stats, PCNConfig(rank=1.0, keep_outputs=0.5, skip_larger=False))
    assert plan.layers["a"].kept_outputs == 8
    assert "written into the model's code" in str(plan.layers["a"].output_reason)
    assert plan.layers["b"].kept_outputs == 2
    named = PCNConfig(rank=1.0, layers={"a": LayerRule(rank=1.0, keep_outputs=4)}, skip_larger=False)
    with pytest.raises(ConfigError, match="'a' is asked to keep 4 outputs, but none can be dropped"):
        pcn.make_plan(model, stats, named)


SIZED_BY_INPUT: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "view": lambda m, x: x.view(x.shape[0], x.shape[1], -1).tanh().view(x.shape),
    "halves": lambda m, x: torch.cat([part.tanh() for part in x.chunk(2, 1)], 1),
    "slices": lambda m, x: torch.cat([x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1),
    "shuffle": lambda m, x: x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2),
}


@pytest.mark.parametrize("name", SIZED_BY_INPUT)
def test_sizes_that_follow_the_input_are_fine(name: str) -> None:
    check(network(SIZED_BY_INPUT[name]), kept=(1, 2, 5, 6))


@pytest.mark.parametrize("kept", [(0,), (7,), (0, 1, 2, 3, 4, 5, 6), tuple(range(8))])
def test_any_number_of_channels_may_be_left(kept: tuple[int, ...]) -> None:
    check(network(lambda m, x: x.relu().flatten(2).mT.tanh().mT.reshape(x.shape)), kept)
