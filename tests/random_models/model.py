"""Whole random models: a stem, blocks, and one or two heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from random_models import blocks, oddities
from random_models.choices import Choices
from random_models.layers import ADAPTIVE_POOLS, Made, Spec, activation, linear, norm, randomise_, shrinking, weighted

BATCH = 6
MAKERS: list[Callable[[Choices, Spec, int], Made]] = [
    blocks.plain,
    blocks.residual,
    blocks.residual,
    blocks.dense,
    blocks.fork,
    blocks.split,
    blocks.shuffle,
    blocks.squeeze_excite,
    blocks.twice,
    blocks.gated,
    blocks.channels_last,
    blocks.sum_of_parts,
    blocks.shared_norm,
    blocks.in_mode,
    lambda c, spec, depth: shrinking(c, spec) if depth else blocks.plain(c, spec, depth),
]
ODD_MAKERS: list[Callable[[Choices, Spec, int], Made]] = [
    oddities.over_space,
    oddities.at_number,
    oddities.across_channels,
    oddities.channels_as_space,
    oddities.own_layer,
    oddities.transposed,
]


def block(c: Choices, spec: Spec, depth: int = 1) -> Made:
    return c.pick(ODD_MAKERS if c.chance(20) else MAKERS)(c, spec, depth)


class Head(nn.Module):
    """From features to the model's output: pooled or flattened in one of several ways."""

    def __init__(self, how: str, dims: int, width: int, layers: nn.Module) -> None:
        super().__init__()
        self.how, self.width, self.layers = how, width, layers
        self.pool = ADAPTIVE_POOLS[dims](1) if dims else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        ways: dict[str, Any] = {
            "pool": lambda: self.pool(x).flatten(1),
            "mean": lambda: x.mean(tuple(range(2, x.ndim))) if x.ndim > 2 else x,
            "flatten": lambda: torch.flatten(x, 1),
            "view": lambda: x.contiguous().view(x.size(0), -1),
            "hard view": lambda: x.reshape(-1, self.width),
            "squeeze": lambda: self.pool(x).squeeze(),
            "expose": lambda: x,
        }
        return self.layers(ways[self.how]())  # type: ignore[no-any-return]


def head(c: Choices, spec: Spec) -> nn.Module:
    how = c.pick(["pool", "flatten", "mean", "view", "squeeze", "hard view", "expose"])
    if how == "expose":
        return Head(how, spec.dims, 0, nn.Identity())
    width = spec.width * (spec.positions if how in ("flatten", "view", "hard view") else 1)
    hidden: list[nn.Module] = []
    flat = Spec(0, width, 1)
    if c.chance(40):
        made, flat = weighted(c, flat, 6)
        hidden = [made, *norm(c, flat), *activation(c, flat)]
    return Head(how, spec.dims, width, nn.Sequential(*hidden, linear(c, flat.width, 3)))


class RandomModel(nn.Module):
    """Stem, blocks and heads; a second head may read the features halfway."""

    def __init__(self, stem: nn.Module, early: nn.Module, late: nn.Module, heads: list[nn.Module], output: str) -> None:
        super().__init__()
        self.stem, self.early, self.late, self.heads, self.output = stem, early, late, nn.ModuleList(heads), output

    def forward(self, x: Tensor) -> Any:
        early = self.early(self.stem(x))
        first = self.heads[0](self.late(early))
        if len(self.heads) == 1:
            return first
        second = self.heads[1](early)
        return {"first": first, "second": second} if self.output == "dict" else (first, second)


@dataclass
class Case:
    """A random model in float64 with a batch for it, and how to build the same architecture once more."""

    model: RandomModel
    inputs: Tensor
    taken: list[int] = field(repr=False)

    def rebuild(self) -> RandomModel:
        """The same architecture with other weights."""
        torch.manual_seed(12345)
        return _architecture(Choices.replayed(self.taken))[0].double()


def random_case(c: Choices) -> Case:
    model, spec = _architecture(c)
    taken = list(c.taken)
    torch.manual_seed(c.below(2**16))
    randomise_(model.double())
    # Training modes of their own here and there, to see that they are given back.
    model.train(c.chance(50))
    if c.chance(30):
        model.early.train(not model.training)
    return Case(model, torch.randn(BATCH, spec.width, *[spec.size] * spec.dims, dtype=torch.float64), taken)


def _architecture(c: Choices) -> tuple[RandomModel, Spec]:
    dims = c.pick([2, 2, 2, 0, 1, 3])
    smallest, largest = {0: (1, 1), 1: (5, 8), 2: (5, 7), 3: (3, 4)}[dims]
    given = Spec(dims, 3, c.between(smallest, largest))
    stem, spec = weighted(c, given, c.pick([4, 8, 5]))  # no multiple of 3, so that one layer is not depthwise
    early, spec = _sequence(c, spec, 1)
    late, last = _sequence(c, spec, 2)
    heads = [head(c, last)]
    output = "one"
    if c.chance(25):
        heads.append(head(c, spec))
        output = c.pick(["tuple", "dict"])
    return RandomModel(stem, early, late, heads, output), given


def _sequence(c: Choices, spec: Spec, most: int) -> Made:
    made = []
    for _ in range(c.between(0, most)):
        inner, spec = block(c, spec)
        made.append(inner)
    return nn.Sequential(*made), spec
