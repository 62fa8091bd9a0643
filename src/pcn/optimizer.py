"""The optimizer follows the parameters: same object, same groups, state carried into the new coordinates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pcn.errors import PlanError
from pcn.transform import project_first_moment, project_second_moment

CARRIED = (SGD, Adam, AdamW)
FIRST_MOMENTS = ("momentum_buffer", "exp_avg")
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")

State = dict[str, Any]


@dataclass(frozen=True)
class Replaced:
    """A parameter that gave way to another: ``carry`` maps what an optimizer holds of it, entry by entry.

    ``carry`` is called with the name of the entry, its value and the old bias's value of the same entry, if any.
    ``gained`` names parameters that had no predecessor and join the same group.
    """

    old: nn.Parameter
    new: nn.Parameter
    carry: Callable[[str, Tensor, Tensor | None], Tensor]
    old_bias: nn.Parameter | None = None
    gained: tuple[tuple[str, nn.Parameter], ...] = ()


def carry_cut(dims: dict[int, tuple[int, ...]]) -> Callable[[str, Tensor, Tensor | None], Tensor]:
    """Everything held per entry loses the same entries as the parameter."""

    def carry(entry: str, value: Tensor, bias_value: Tensor | None) -> Tensor:
        for dim, kept in dims.items():
            value = value.index_select(dim, torch.tensor(kept, device=value.device))
        return value

    return carry


def carry_projected(
    mean: Tensor, basis: Tensor, *, rows: Tensor | None, kept: Tensor | None, groups: int, transposed: bool
) -> Callable[[str, Tensor, Tensor | None], Tensor]:
    """Running means of gradients go along exactly, running means of squares by U∘U (an estimate)."""

    def carry(entry: str, value: Tensor, bias_value: Tensor | None) -> Tensor:
        value = value.transpose(0, 1) if transposed else value
        if rows is not None:
            value = value.index_select(0, rows.to(value.device))
            bias_value = None if bias_value is None else bias_value.index_select(0, rows.to(value.device))
        if entry in FIRST_MOMENTS:
            return project_first_moment(value, bias_value, mean, basis, kept, groups)
        return project_second_moment(value, basis, kept, groups)

    return carry


def check_optimizer(optimizer: Optimizer, *, strict: bool) -> None:
    """Say beforehand whether an optimizer's state can go along: warn that it is reset, or refuse in strict mode."""
    if isinstance(optimizer, CARRIED):
        return
    text = f"{type(optimizer).__name__} is not SGD, Adam or AdamW: its state for replaced parameters starts afresh"
    if strict:
        raise PlanError(f"{text}; pass strict=False to accept that")
    warnings.warn(text, stacklevel=4)


def check_holds(optimizer: Optimizer, replaced: list[Replaced]) -> None:
    """Raise when an optimizer has none of the parameters that give way: it belongs to another model."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = [change for change in replaced if change.old.requires_grad]
    if trained and not any(id(change.old) in held for change in trained):
        raise PlanError(
            "the optimizer holds none of the parameters that are replaced; give the one that trains this model"
        )


def follow_(optimizer: Optimizer, replaced: list[Replaced], *, carry: bool = True) -> None:
    """Put the new parameters into the old ones' groups and give them the state that they would have had.

    With ``carry=False`` they start without state.

    A gained bias stands behind its weight, with that group's learning rate and decay, and starts without state.
    """
    by_old = {id(change.old): change for change in replaced}
    moved: dict[Tensor, State] = {}
    if carry and isinstance(optimizer, CARRIED):
        for change in replaced:
            if state := optimizer.state.get(change.old):
                moved[change.new] = _carried(change, state, _state(optimizer, change.old_bias))
    for group in optimizer.param_groups:
        names = group.get("param_names")
        pairs = list(_successors(group["params"], names, by_old))
        group["params"][:] = [parameter for parameter, _ in pairs]
        if names is not None:
            names[:] = [name for _, name in pairs]
    for change in replaced:
        optimizer.state.pop(change.old, None)
    optimizer.state.update(moved)


def _state(optimizer: Optimizer, parameter: nn.Parameter | None) -> State:
    return {} if parameter is None else optimizer.state.get(parameter) or {}


def _successors(
    parameters: list[nn.Parameter], names: list[str] | None, by_old: dict[int, Replaced]
) -> Iterator[tuple[nn.Parameter, str]]:
    """Yield what stands in a group afterwards, with its name where the group knows names."""
    for position, parameter in enumerate(parameters):
        name = names[position] if names else ""
        change = by_old.get(id(parameter))
        if change is None:
            yield parameter, name
            continue
        yield change.new, name
        for attribute, gained in change.gained:
            yield gained, f"{name.rpartition('.')[0]}.{attribute}" if name else ""


def _carried(change: Replaced, state: State, bias_state: State) -> State:
    carried: State = {}
    for entry, value in state.items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            carried[entry] = value  # a step count, or None
        elif entry in FIRST_MOMENTS + SECOND_MOMENTS:
            carried[entry] = change.carry(entry, value, bias_state.get(entry))
        else:
            warnings.warn(f"the optimizer's {entry!r} is unknown: that parameter's state starts afresh", stacklevel=2)
            return {}
    return carried
