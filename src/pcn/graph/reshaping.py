"""Rules for operators that move or regroup dimensions without touching values."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pcn.graph.atoms import Atoms, Carried, Label
from pcn.graph.rules import Call, Output, operators, refuse, rule


@rule(
    *(f"aten.{name}" for name in ["view", "reshape", "_unsafe_view", "flatten", "unflatten", "reshape_as", "view_as"])
)
def reshape(atoms: Atoms, call: Call) -> Output:
    value = next(call.tensors())
    if 0 in call.shape:
        return refuse(atoms, call, f"{call.op} of an empty tensor")
    labels: list[Label] = [None] * len(call.shape)
    for old, new in regroup(value.shape, call.shape):
        known = [d for d in old if value.labels[d] is not None]
        if len(known) > 1:
            for dim in known:
                atoms.pin(value.labels[dim], f"{call.op} merges two dimensions of channels")
        elif known:
            _spread(atoms, value, known[0], old, new, labels, call)
    return Carried(call.shape, tuple(labels))


def regroup(old: tuple[int, ...], new: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the smallest groups of old and new dimensions that hold the same elements; sizes of 1 are passed over.

    >>> list(regroup((2, 8, 4, 4), (2, 128)))
    [([0], [0]), ([1, 2, 3], [1])]
    """
    olds = [d for d, size in enumerate(old) if size != 1]
    news = [d for d, size in enumerate(new) if size != 1]
    i = j = 0
    while i < len(olds) and j < len(news):
        first, second = [olds[i]], [news[j]]
        left, right = old[olds[i]], new[news[j]]
        while left != right:
            if left < right:
                i += 1
                first.append(olds[i])
                left *= old[olds[i]]
            else:
                j += 1
                second.append(news[j])
                right *= new[news[j]]
        yield first, second
        i, j = i + 1, j + 1


def _spread(
    atoms: Atoms, value: Carried, dim: int, old: list[int], new: list[int], labels: list[Label], call: Call
) -> None:
    """Write the label of one old dimension onto the new dimensions of its group."""
    label = value.labels[dim]
    assert label is not None
    view = [len(label) if d == dim else 1 for d in old]
    spread = label.view(view).expand([value.shape[d] for d in old]).reshape([call.shape[d] for d in new])
    varying = [k for k in range(len(new)) if not torch.equal(spread, spread.narrow(k, 0, 1).expand_as(spread))]
    if not varying:
        return
    # Spread over several dimensions, only what is dropped alike along all but the last leaves a rectangle.
    for k in varying[:-1]:
        first = spread.narrow(k, 0, 1).expand_as(spread)
        atoms.couple(first, spread)
        spread = first
    last = varying[-1]
    labels[new[last]] = spread[tuple(slice(None) if k == last else 0 for k in range(len(new)))]


@rule(*operators("permute transpose t numpy_T mT movedim moveaxis swapaxes swapdims"))
def permute(atoms: Atoms, call: Call) -> Output:
    value = next(call.tensors())
    if value.ndim == 0:
        return value
    return Carried(call.shape, tuple(value.labels[d] for d in _order(call, value.ndim)))


def _order(call: Call, ndim: int) -> list[int]:
    """The old dimension that stands at every new one."""
    order = list(range(ndim))
    if "dims" in call.arguments:
        return call.dims("dims", ndim)
    if "source" in call.arguments:
        moved, to = call.dims("source", ndim), call.dims("destination", ndim)
        order = [d for d in order if d not in moved]
        for place, dim in sorted(zip(to, moved, strict=True)):
            order.insert(place, dim)
        return order
    swapped = [call.arguments[name] % ndim for name in ("dim0", "dim1", "axis0", "axis1") if name in call.arguments]
    swapped = [ndim - 2, ndim - 1] if call.op == "aten.mT" else swapped
    if swapped:
        a, b = swapped
        order[a], order[b] = b, a
        return order
    return order[::-1]


@rule("aten.squeeze", "aten.unsqueeze")
def squeeze(atoms: Atoms, call: Call) -> Carried:
    """Only sizes of 1 come or go, so the other labels keep their order."""
    value = next(call.tensors())
    labels = iter([label for label, size in zip(value.labels, value.shape, strict=True) if size != 1])
    return Carried(call.shape, tuple(None if size == 1 else next(labels) for size in call.shape))


@rule("aten.expand", "aten.expand_as", "aten.broadcast_to")
def expand(atoms: Atoms, call: Call) -> Carried:
    value = next(call.tensors())
    new = len(call.shape) - value.ndim
    kept = [
        label if size == call.shape[new + d] else None
        for d, (label, size) in enumerate(zip(value.labels, value.shape, strict=True))
    ]
    return Carried(call.shape, (*(None,) * new, *kept))


@rule("aten.repeat", "aten.tile")
def repeat(atoms: Atoms, call: Call) -> Carried:
    value = next(call.tensors())
    new = len(call.shape) - value.ndim
    labels = [
        None if label is None else label.repeat(call.shape[new + d] // size)
        for d, (label, size) in enumerate(zip(value.labels, value.shape, strict=True))
    ]
    return Carried(call.shape, (*(None,) * new, *labels))
