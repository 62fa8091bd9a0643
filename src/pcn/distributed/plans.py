"""One plan for all processes: made on one of them, applied on every one or on none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pcn.collectives import Ranks
from pcn.plans.plan import Plan
from pcn.rewriting.bases import Bases, Basis
from pcn.rewriting.surgery import apply_plan_
from pcn.rewriting.taps import Along
from pcn.running.example import device_of

T = TypeVar("T")
Made = tuple[Plan, Bases]
Tensors = dict[str, list[Tensor | None]]
Shape = tuple[tuple[int, ...], torch.dtype]


def agree_on_plan(make: Callable[[], Made], model: nn.Module, ranks: Ranks, source: int) -> Made:
    """Have one rank make the plan and its bases; every rank gets both, or all raise what that one raised."""
    made: list[Plan] = []

    def told() -> tuple[str, Tensors]:
        plan, bases = make()
        made.append(plan)
        return plan.to_json(), {name: _tensors(basis) for name, basis in bases.items()}

    text, tensors = _agree(told, model, ranks, source)
    bases = {name: Basis(*each) for name, each in tensors.items()}  # type: ignore[arg-type]
    return made[0] if made else Plan.from_json(text), bases


def agree_on_directions(
    find: Callable[[], dict[str, Along]], model: nn.Module, ranks: Ranks, source: int
) -> dict[str, Along]:
    """Have one rank find directions for all: found on their own, they could differ where variances are alike."""
    _, tensors = _agree(lambda: (None, {name: [*along] for name, along in find().items()}), model, ranks, source)
    return {name: Along(*each) for name, each in tensors.items()}  # type: ignore[arg-type]


def _agree(make: Callable[[], tuple[T, Tensors]], model: nn.Module, ranks: Ranks, source: int) -> tuple[T, Tensors]:
    """Have one rank make something with tensors to it; every rank gets all, or all raise what that one raised."""
    made: list[Tensors] = []

    def told() -> tuple[T, dict[str, list[Shape | None]]]:
        said, tensors = make()
        made.append(tensors)
        return said, {name: [_shape(tensor) for tensor in each] for name, each in tensors.items()}

    said, shapes = ranks.from_one(told, source)
    tensors = made[0] if made else _empty(shapes, device_of(model))
    for tensor in chain.from_iterable(tensors.values()):
        if tensor is not None:
            ranks.broadcast_(tensor, source)
    return said, tensors


def apply_together_(
    plan: Plan, model: nn.Module, bases: Bases, ranks: Ranks, then: Callable[[], None] | None = None, **options: Any
) -> None:
    """Apply a plan on every rank; where one fails before its optimizer has followed, all put everything back.

    ``then`` is called before optimizers follow; what it raises, it raises on every rank.
    """
    told = False

    def confirm() -> None:
        nonlocal told
        told = True
        ranks.report(None)
        if then is not None:
            then()

    try:
        apply_plan_(plan, model, bases, confirm=confirm, **options)
    except Exception as error:
        if not told:
            ranks.report(error)
        raise


def _tensors(basis: Basis) -> list[Tensor | None]:
    return [getattr(basis, each.name) for each in fields(Basis)]


def _shape(tensor: Tensor | None) -> Shape | None:
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype)


def _empty(shapes: dict[str, list[Shape | None]], device: torch.device | None) -> Tensors:
    def empty(shape: Shape | None) -> Tensor | None:
        return None if shape is None else torch.empty(shape[0], dtype=shape[1], device=device)

    return {name: [empty(shape) for shape in given] for name, given in shapes.items()}
