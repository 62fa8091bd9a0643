"""Asking a graph which channels go together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pcn.graph import ChannelGraph, trace
from pcn.running.example import Example


class Wired(nn.Module):
    """Named layers and a function that wires them up."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))
        self.wiring = forward

    def forward(self, x: Tensor) -> Any:
        return self.wiring(self, x)


def graph_of(model: nn.Module, *shape: int) -> ChannelGraph:
    return trace(model, Example.of(torch.randn(*shape)))


def together(graph: ChannelGraph, *places: tuple[str, int]) -> bool:
    """Whether the channels along these dimensions go together one by one, and no two of one dimension do."""
    classes = [graph.tensors[name][dim] for name, dim in places]
    distinct = all(len(c.unique()) == len(c) for c in classes)
    return distinct and all(torch.equal(classes[0], c) for c in classes[1:])


def why(graph: ChannelGraph, name: str, dim: int = 0) -> set[str | None]:
    """The reasons for which the channels along a dimension must stay; None where one may go."""
    return {graph.pinned.get(c) for c in graph.tensors[name][dim].tolist()}
