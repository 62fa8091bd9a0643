"""What ``torch.compile`` is told of our operators: what their outputs look like, and that they are called as such."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

FIXED = (2, 13)  # the version of PyTorch from which an operator that Inductor has not met yet costs nothing
LOWERING = "torch._inductor.lowering"
Fake = Callable[..., Any]


def fake_of(operator: CustomOpDef) -> Callable[[Fake], Fake]:
    """Register a function that makes an operator's outputs without computing them.

    Every compilation begins with it, which is the time to introduce the operators to a compiler that needs it.
    """

    def register(fake: Fake) -> Fake:
        @wraps(fake)
        def introduced(*arguments: Any) -> Any:
            if _version() < FIXED and LOWERING in sys.modules:
                introduce_operators()
            return fake(*arguments)

        operator.register_fake(introduced)
        return fake

    return register


def introduce_operators() -> None:
    """Have Inductor call our operators as they are, as it would by itself.

    Before it does that for the first time, it writes an operator's arguments out for a log, and theirs, up to the
    inputs of the graph; every residual sum doubles that text. In a network of sixteen blocks it has no end.
    """
    lowering = sys.modules[LOWERING]
    for name in _names():
        operator = getattr(torch.ops.pcn, name).default
        if operator not in lowering.lowerings:
            tag = torch._library.utils.get_layout_constraint_tag(operator, with_default=True)
            lowering.make_fallback(operator, layout_constraint=lowering.tag_to_layout_constraint(tag))


def _names() -> list[str]:
    found = torch._C._dispatch_get_all_op_names()
    return [name.removeprefix("pcn::") for name in found if name.startswith("pcn::")]


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])
