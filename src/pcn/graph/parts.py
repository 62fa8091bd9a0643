"""Rules for operators that join tensors or take parts of them."""

from __future__ import annotations

import torch

from pcn.graph.atoms import Atoms, Carried, Label
from pcn.graph.pointwise import meet
from pcn.graph.rules import Call, Output, rule


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
