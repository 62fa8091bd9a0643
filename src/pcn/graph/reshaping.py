"""Rules for operators that move, split, join or regroup dimensions without touching values."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pcn.graph.atoms import Atoms, Carried, Label
from pcn.graph.pointwise import meet
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


@rule("aten.cat", "aten.concat", "aten.concatenate")
def cat(atoms: Atoms, call: Call) -> Carried:
    parts = [v for v in call.tensors() if v.shape != (0,)]
    dim = call.get("dim", 0) % parts[0].ndim
    labels: list[Label] = []
    for d, size in enumerate(call.shape):
        along = [part.labels[d] for part in parts]
        if d != dim:
            labels.append(meet(atoms, along, size, call.op))
        elif all(label is None for label in along):
            labels.append(None)
        else:
            labels.append(torch.cat([_certain(atoms, part, d, call) for part in parts]))
    return Carried(call.shape, tuple(labels))


def _certain(atoms: Atoms, part: Carried, dim: int, call: Call) -> torch.Tensor:
    """The label of a dimension, or fresh atoms that must stay where its size is fixed."""
    label = part.labels[dim]
    if label is None:
        label = atoms.fresh(part.shape[dim])
        atoms.pin(label, f"it comes from a tensor of fixed size through {call.op}")
    return label


@rule("aten.stack")
def stack(atoms: Atoms, call: Call) -> Carried:
    parts = list(call.tensors())
    dim = call.get("dim", 0) % len(call.shape)
    labels = [meet(atoms, [p.labels[d] for p in parts], size, call.op) for d, size in enumerate(parts[0].shape)]
    return Carried(call.shape, (*labels[:dim], None, *labels[dim:]))


@rule(
    "aten.split", "aten.split_with_sizes", "aten.chunk", "aten.unsafe_split", "aten.unsafe_chunk", "aten.tensor_split"
)
def split(atoms: Atoms, call: Call) -> Output:
    value = next(call.tensors())
    dim = call.get("dim", 0) % value.ndim
    sizes = [shape[dim] for shape in call.shapes]
    label = value.labels[dim]
    if label is not None and len(set(sizes)) == 1:
        couple_parts(atoms, label, len(sizes))
    parts = [None] * len(sizes) if label is None else list(label.split(sizes))
    return [
        Carried(shape, (*value.labels[:dim], part, *value.labels[dim + 1 :]))
        for shape, part in zip(call.shapes, parts, strict=True)
    ]


def couple_parts(atoms: Atoms, label: torch.Tensor, parts: int) -> None:
    """Couple equal parts with each other: a model that halves its channels goes on halving the smaller number."""
    rows = label.view(parts, -1)
    atoms.couple(rows, rows[:1])


@rule("aten.slice", "aten.narrow")
def slice_(atoms: Atoms, call: Call) -> Carried:
    value = next(call.tensors())
    dim = call.get("dim", 0) % value.ndim
    size, taken = value.shape[dim], call.shape[dim]
    label = value.labels[dim]
    if label is not None and taken != size:
        start = call.get("start", 0)
        start = min(start + size if start < 0 else start, size)
        step = call.get("step", 1)
        if step == 1 and taken and size % taken == 0 and start % taken == 0:
            couple_parts(atoms, label, size // taken)
        label = label[start::step][:taken]
    return Carried(call.shape, (*value.labels[:dim], label, *value.labels[dim + 1 :]))


@rule("aten.select", "aten.unbind")
def select(atoms: Atoms, call: Call) -> Output:
    value = next(call.tensors())
    dim = call.get("dim", 0) % value.ndim
    atoms.pin(value.labels[dim], f"{call.op} picks single channels by number")
    labels = (*value.labels[:dim], *value.labels[dim + 1 :])
    outputs = [Carried(shape, labels) for shape in call.shapes]
    return outputs[0] if call.op == "aten.select" else outputs


@rule("aten.index")
def index(atoms: Atoms, call: Call) -> Carried:
    """Tensors of indices pick along some dimensions; what they pick stands where the first of these was."""
    value, indices = call["self"], call["indices"]
    picked = [d for d, given in enumerate(indices) if given is not None]
    for dim in picked:
        atoms.pin(value.labels[dim], f"{call.op} picks single channels by number")
        atoms.pin_all(indices[dim], f"{call.op} takes it for numbers of channels")
    rest = [label for d, label in enumerate(value.labels) if d not in picked]
    # Dimensions that do not stand side by side make room at the front.
    at = picked[0] if picked[-1] - picked[0] == len(picked) - 1 else 0
    new = len(call.shape) - len(rest)
    return Carried(call.shape, (*rest[:at], *(None,) * new, *rest[at:]))


@rule(
    "aten.pad", "aten.constant_pad_nd", *(f"aten.{m}_pad{n}d" for m in ("reflection", "replication") for n in (1, 2, 3))
)
def pad(atoms: Atoms, call: Call) -> Carried:
    value = next(call.tensors())
    labels = list(value.labels)
    for d, (before, after) in enumerate(zip(value.shape, call.shape, strict=True)):
        label = labels[d]
        if before != after and label is not None:
            atoms.pin(label, f"{call.op} adds channels to it")
            labels[d] = None
    return Carried(call.shape, tuple(labels))
