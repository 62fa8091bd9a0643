"""Operators that only move values: where the rules say that a channel is, its values are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pcn.graph import ChannelGraph, trace
from pcn.graph.reshaping import regroup
from pcn.running.example import Example

IN_OUTPUT = "its channels are visible in the model's output"
sizes = st.integers(1, 4)
shapes = st.lists(sizes, min_size=1, max_size=4).map(tuple)


class Mover(nn.Module):
    """Shows what becomes of a tensor of which one dimension holds channels."""

    def __init__(self, shape: tuple[int, ...], dim: int, move: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.channels = nn.Parameter(torch.zeros([size if d == dim else 1 for d, size in enumerate(shape)]))
        self.shape, self.move = shape, move

    def forward(self, x: Tensor) -> Any:
        return self.move(self.channels.expand(self.shape))


def moved(shape: tuple[int, ...], dim: int, move: Callable[[Tensor], Any]) -> tuple[Tensor, ChannelGraph]:
    """Return the classes of the dimension that holds channels, and the graph."""
    graph = trace(Mover(shape, dim, move), Example.of(torch.zeros(1)))
    return graph.tensors["channels"][dim], graph


def check_moving(shape: tuple[int, ...], move: Callable[[Tensor], Any]) -> int:
    """Fill a tensor with the classes along one dimension and look for them where the labels say; count what passes."""
    passing = 0
    for dim in (d for d, size in enumerate(shape) if size > 1):
        classes, graph = moved(shape, dim, move)
        if all(graph.pinned.get(c, IN_OUTPUT) == IN_OUTPUT for c in classes.tolist()):
            passing += 1
            view = [-1 if d == dim else 1 for d in range(len(shape))]
            values = move(classes.view(view).expand(shape).clone())
            values = list(values) if isinstance(values, tuple | list) else [values]
            for carried, given_out in zip(graph.flows[0].calls[-1].outputs, values, strict=True):
                assert any(_describes(label, d, given_out) for d, label in enumerate(carried.labels))
    return passing


def _describes(label: Tensor | None, dim: int, values: Tensor) -> bool:
    if label is None:
        return False
    view = [-1 if d == dim else 1 for d in range(values.ndim)]
    return torch.equal(label.view(view).expand_as(values), values)


@given(shapes, shapes)
def test_groups_of_dimensions_hold_the_same_elements(old: tuple[int, ...], tail: tuple[int, ...]) -> None:
    total = torch.Size(old).numel()
    assume(total % torch.Size(tail).numel() == 0)
    new = (total // torch.Size(tail).numel(), *tail)
    groups = list(regroup(old, new))
    for first, second in groups:
        assert torch.Size([old[d] for d in first]).numel() == torch.Size([new[d] for d in second]).numel()
    assert [d for first, _ in groups for d in first] == [d for d, size in enumerate(old) if size > 1]
    assert [d for _, second in groups for d in second] == [d for d, size in enumerate(new) if size > 1]


@settings(max_examples=40)
@given(shapes, shapes)
def test_reshape(shape: tuple[int, ...], tail: tuple[int, ...]) -> None:
    total = torch.Size(shape).numel()
    assume(total % torch.Size(tail).numel() == 0)
    new = (total // torch.Size(tail).numel(), *tail)
    check_moving(shape, lambda value: value.reshape(new))


@settings(max_examples=15)
@given(st.permutations([0, 1, 2, 3]))
def test_permute(order: list[int]) -> None:
    check_moving((2, 3, 4, 5), lambda value: value.permute(order))


@settings(max_examples=15)
@given(st.permutations([0, 1, 2, -1]), st.permutations([0, -3, 2, 3]), st.integers(1, 4))
def test_movedim(source: list[int], destination: list[int], count: int) -> None:
    check_moving((2, 3, 4, 5), lambda value: value.movedim(source[:count], destination[:count]))


MOVES: dict[str, Callable[[Tensor], Any]] = {
    "transpose": lambda value: value.transpose(0, -1),
    "swapaxes": lambda value: torch.swapaxes(value, 1, 2),
    "swapdims": lambda value: value.swapdims(0, 2),
    "mT": lambda value: value.mT,
    "flatten": lambda value: value.flatten(1),
    "unflatten": lambda value: value.unflatten(1, (3, -1)),
    "squeeze": lambda value: value[:, :, :, None].squeeze(-1),
    "unsqueeze": lambda value: value.unsqueeze(1).unsqueeze(-1),
    "expand": lambda value: value[None].expand(3, *value.shape),
    "expand_as": lambda value: value[:, :, None].expand_as(value[:, :, None]),
    "repeat": lambda value: value.repeat(2, 1, 3, 1),
    "tile": lambda value: value.tile(2, 1),
    "chunk": lambda value: value.chunk(2, dim=1),
    "split": lambda value: value.split([1, 5], dim=1),
    "split evenly": lambda value: value.split(2, 1),
    "tensor_split": lambda value: value.tensor_split(3, dim=1),
    "slice": lambda value: value[:, 1:5:2],
    "half": lambda value: value[:, : value.shape[1] // 2],
    "negative": lambda value: value[:, -3:],
    "narrow": lambda value: value.narrow(2, 1, 2),
    "cat": lambda value: torch.cat([value, value], dim=1),
    "stack": lambda value: torch.stack([value, value], dim=1),
    "shuffle": lambda value: value.view(4, 2, 3, 4).transpose(1, 2).reshape(4, 6, 4),
    "clone": lambda value: value.clone().contiguous(),
    "pad": lambda value: torch.nn.functional.pad(value, (0, 0)),
    "select": lambda value: value.select(2, 1),
    "unbind": lambda value: value.unbind(0),
    "nothing": lambda value: torch.cat([value[:, 2:2], value], 1),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=list(MOVES))
def test_each_way_of_moving(move: Callable[[Tensor], Any]) -> None:
    assert check_moving((4, 6, 4), move) >= 2


def test_halves_go_together_and_so_do_the_groups_of_a_shuffle() -> None:
    halved, _ = moved((4, 6, 4), 1, MOVES["chunk"])
    assert torch.equal(halved[:3], halved[3:])
    assert len(halved.unique()) == 3
    assert torch.equal(moved((4, 6, 4), 1, MOVES["shuffle"])[0], halved)


def test_a_flattened_channel_is_at_all_its_positions() -> None:
    classes, graph = moved((2, 3, 4), 1, lambda value: value.flatten(1))
    assert torch.equal(graph.flows[0].calls[-1].outputs[0].labels[1], classes.repeat_interleave(4))


def test_merging_two_dimensions_of_channels_keeps_both() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Parameter(torch.zeros(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.both.reshape(12)

    graph = trace(Outer(), Example.of(torch.zeros(1)))
    for classes in graph.tensors["both"]:
        assert {graph.pinned[c] for c in classes.tolist()} == {"aten.reshape merges two dimensions of channels"}
