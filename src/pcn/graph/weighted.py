"""Rules for operators that read a weight: they end one set of channels and begin another."""

from __future__ import annotations

import torch

from pcn.graph.atoms import Atoms, Carried, Label
from pcn.graph.rules import Call, rule

CONVOLUTION_OPS = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution")
LINEAR_OPS = ("aten.linear",)
ADDMM_OPS = ("aten.addmm",)
WEIGHT_ARGUMENT = dict.fromkeys((*CONVOLUTION_OPS, *LINEAR_OPS), "weight") | dict.fromkeys(ADDMM_OPS, "mat2")
INPUT_INDEX = dict.fromkeys((*CONVOLUTION_OPS, *LINEAR_OPS), 0) | dict.fromkeys(ADDMM_OPS, 1)


@rule(*LINEAR_OPS)
def linear(atoms: Atoms, call: Call) -> Carried:
    value, weight = call["input"], call["weight"]
    _read(atoms, value, -1, weight, 1, call)
    _bias(atoms, call.get("bias"), weight, 0)
    return Carried(call.shape, (*value.labels[:-1], weight.labels[0]))


@rule(*ADDMM_OPS)
def addmm(atoms: Atoms, call: Call) -> Carried:
    value, weight = call["mat1"], call["mat2"]
    _read(atoms, value, -1, weight, 0, call)
    _bias(atoms, call["self"], weight, 1)
    return Carried(call.shape, (value.labels[0], weight.labels[1]))


@rule(*CONVOLUTION_OPS)
def convolution(atoms: Atoms, call: Call) -> Carried:
    value, weight, groups = call["input"], call["weight"], call.get("groups", 1)
    spatial = weight.ndim - 2
    channels = value.ndim - spatial - 1
    if call.get("transposed", False):
        atoms.pin_all(value, "a transposed convolution reads it")
        atoms.pin_all(weight, "it is a transposed convolution's")
        return Carried.fixed(call.shape)
    if groups == 1:
        _read(atoms, value, channels, weight, 1, call)
    else:
        _read_grouped(atoms, value, channels, weight, groups, call)
    _bias(atoms, call.get("bias"), weight, 0)
    return Carried(call.shape, (*value.labels[:channels], weight.labels[0], *_space(atoms, value, weight, call)))


def _space(atoms: Atoms, value: Carried, weight: Carried, call: Call) -> list[Label]:
    """Channels may stand where a convolution expects positions: those pass a kernel of one pixel, no other."""
    steps, pads = call.get("stride", 1), call.get("padding", 0)
    still = set(steps if isinstance(steps, list) else [steps]) == {1}
    unpadded = pads in ("same", "valid") or set(pads if isinstance(pads, list) else [pads]) == {0}
    labels: list[Label] = []
    for kernel, label in zip(weight.shape[2:], value.labels[value.ndim - weight.ndim + 2 :], strict=True):
        passes = kernel == 1 and still and unpadded
        labels.append(label if passes else None)
        if not passes:
            atoms.pin(label, f"{call.op} takes it for positions")
    return labels


@rule("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def transposed_convolution(atoms: Atoms, call: Call) -> Carried:
    """Its inputs must stay, as it cannot be transformed; its outputs may go."""
    value, weight = call["input"], call["weight"]
    spatial = weight.ndim - 2
    channels = value.ndim - spatial - 1
    for label in (*value.labels[channels:], weight.labels[0]):
        atoms.pin(label, "a transposed convolution reads it")
    if call.get("groups", 1) > 1:
        atoms.pin(weight.labels[1], "a transposed convolution in groups puts it out")
        return Carried(call.shape, (*value.labels[:channels], *(None,) * (spatial + 1)))
    _bias(atoms, call.get("bias"), weight, 1)
    return Carried(call.shape, (*value.labels[:channels], weight.labels[1], *(None,) * spatial))


def _read(atoms: Atoms, value: Carried, dim: int, weight: Carried, in_dim: int, call: Call) -> None:
    """Couple the inputs' channels with the weight's input dimension."""
    inputs, rows = value.labels[dim], weight.labels[in_dim]
    if rows is None:
        atoms.pin(inputs, f"{call.op} reads it with a computed weight")
    elif inputs is None:
        atoms.pin(rows, "its input has a fixed size")
    else:
        atoms.couple(inputs, rows)


def _read_grouped(atoms: Atoms, value: Carried, dim: int, weight: Carried, groups: int, call: Call) -> None:
    """Depthwise: a channel and its filters go together. Otherwise all groups lose the same channels, to stay equal."""
    inputs, outputs, rows = value.labels[dim], weight.labels[0], weight.labels[1]
    if inputs is None or outputs is None or rows is None:
        for label in (inputs, outputs, rows):
            atoms.pin(label, f"{call.op} in groups reads a tensor of fixed size")
    elif weight.shape[1] == 1 and not torch.isin(rows, inputs).any():  # else: one channel is left of each group
        atoms.couple(inputs.view(-1, 1), outputs.view(groups, -1))
    else:
        atoms.couple(inputs.view(groups, -1), rows)
        by_group = outputs.view(groups, -1)
        atoms.couple(by_group, by_group[:1])


def _bias(atoms: Atoms, bias: Carried | None, weight: Carried, out_dim: int) -> None:
    label = weight.labels[out_dim]
    if bias is not None and label is not None and bias.labels[-1] is not None:
        atoms.couple(bias.labels[-1], label)


@rule("aten.embedding")
def embedding(atoms: Atoms, call: Call) -> Carried:
    weight = call["weight"]
    atoms.pin(weight.labels[0], "it is an embedding's vocabulary")
    return Carried(call.shape, (*(None,) * (len(call.shape) - 1), weight.labels[1]))
