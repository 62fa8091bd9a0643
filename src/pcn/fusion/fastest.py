"""The fastest form of every layer, found once and then remembered in the model's plan."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pcn.fusion.choose import choose_forms
from pcn.layers import unwrap
from pcn.plans.plan import Form, get_plan, set_plan_
from pcn.running.example import Example, device_of


def fastest_forms(model: nn.Module, example: Any, *, norms: bool = True) -> dict[str, Form]:
    """Return what :func:`choose_forms` finds; a model that carries a plan keeps it there, and is not measured again.

    What is fastest depends on the device, the dtype and the size of the batch, so each of these is measured for itself.
    """
    base = unwrap(model)
    given = Example.for_model(base, example)
    plan, where = get_plan(base), _where(base, given) + ("" if norms else ", norms as they are")
    if plan is not None and where in plan.forms:
        return dict(plan.forms[where])
    found = choose_forms(base, given, norms=norms)
    if plan is not None:
        set_plan_(base, replace(plan, forms={**plan.forms, where: dict(found)}))
    return found


def _where(model: nn.Module, example: Example) -> str:
    device = device_of(model) or torch.device("cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    first = next((value for value in tree_leaves(example.inputs) if isinstance(value, Tensor)), torch.empty(0))
    casts = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if casts else first.dtype
    return f"{name}, torch {torch.__version__}, {str(dtype).removeprefix('torch.')}, {tuple(first.shape)}"
