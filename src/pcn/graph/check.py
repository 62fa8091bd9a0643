"""Proof that a model does the same without some channels: its graph is captured again and held against the first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pcn.errors import PlanError
from pcn.graph.atoms import Atoms, Carried, Label
from pcn.graph.channels import ChannelGraph, Flow
from pcn.graph.trace import capture
from pcn.graph.walk import Walk
from pcn.running.example import Example

Expected = dict[str, tuple[Tensor, ...]]


def check_couplings(model: nn.Module, example: Example, graph: ChannelGraph, dropped: Tensor) -> None:
    """Raise unless a model without the dropped classes (``dropped`` says which) passes on exactly those that are left.

    A size or a channel's number that is written into its code shows up as a failing trace, as another series of calls,
    or as a call that puts out other channels than those of the first graph that were not dropped: at inference, or in
    training.
    """
    left: Expected = {name: tuple(_left(c, dropped) for c in classes) for name, classes in graph.tensors.items()}
    for flow in graph.flows:
        walk = Walk(model, Atoms(graph.class_count), lambda name, shape: left[name])
        walk.run(capture(model, example, training=flow.training))
        _check_flow(flow, walk, dropped)


def _check_flow(flow: Flow, walk: Walk, dropped: Tensor) -> None:
    """Hold what a model does in one mode against what it did with all channels."""
    when = " in train mode" if flow.training else ""
    if [(call.op, call.inputs) for call in walk.flow] != [(call.op, call.inputs) for call in flow.calls]:
        raise PlanError(f"with fewer channels the model makes other calls{when}")
    numbers = [call.numbers for call in walk.flow] == [call.numbers for call in flow.calls]
    if not numbers or not all(map(torch.equal, walk.constants, flow.constants)):
        raise PlanError(f"with fewer channels the model computes with other numbers{when}")
    for before, after in zip(flow.calls, walk.flow, strict=True):
        pairs = zip(before.outputs, after.outputs, strict=False)
        same_number = len(before.outputs) == len(after.outputs)
        if not same_number or not all(_as_expected(old, new, dropped) for old, new in pairs):
            place = f"in {before.who!r} " if before.who else ""
            raise PlanError(
                f"with fewer channels {before.op} {place}no longer puts out the channels that are left{when}"
            )


def _left(classes: Tensor, dropped: Tensor) -> Tensor:
    return classes[~dropped[classes]]


def _as_expected(old: Carried, new: Carried, dropped: Tensor) -> bool:
    if old.ndim != new.ndim:
        return False
    sizes = zip(old.labels, old.shape, new.labels, new.shape, strict=True)
    return all(_same_channels(*dimension, dropped) for dimension in sizes)


def _same_channels(old: Label, old_size: int, new: Label, new_size: int, dropped: Tensor) -> bool:
    if old is None:
        return old_size == new_size
    left = _left(old, dropped)
    if new is None:  # the trail of a single channel is lost where dimensions of size 1 come and go
        return len(left) == new_size
    known = new < len(dropped)  # the others were made up on the way, for tensors of fixed size
    return len(left) == new_size and torch.equal(left[known], new[known])
