"""One plan for all processes: made on one of them, applied on every one or on none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from pcn.collectives import Ranks
from pcn.plans.plan import Plan
from pcn.rewriting.bases import Bases, Basis
from pcn.rewriting.surgery import apply_plan_
from pcn.running.example import device_of

Made = tuple[Plan, Bases]
Shape = tuple[tuple[int, ...], torch.dtype]


def agree_on_plan(make: Callable[[], Made], model: nn.Module, ranks: Ranks, source: int) -> Made:
    """Have one rank make the plan and its bases; every rank gets both, or all raise what that one raised."""
    made: list[Made] = []

    def told() -> tuple[str, dict[str, list[Shape | None]]]:
        plan, bases = make()
        made.append((plan, bases))
        return plan.to_json(), {name: [_shape(tensor) for tensor in _tensors(basis)] for name, basis in bases.items()}

    text, shapes = ranks.from_one(told, source)
    plan, bases = made[0] if made else (Plan.from_json(text), _empty(shapes, device_of(model)))
    for basis in bases.values():
        for tensor in _tensors(basis):
            if tensor is not None:
                ranks.broadcast_(tensor, source)
    return plan, bases


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


def _empty(shapes: dict[str, list[Shape | None]], device: torch.device | None) -> Bases:
    def empty(shape: Shape | None) -> Tensor | None:
        return None if shape is None else torch.empty(shape[0], dtype=shape[1], device=device)

    return {name: Basis(*(empty(shape) for shape in given)) for name, given in shapes.items()}  # type: ignore[arg-type]
