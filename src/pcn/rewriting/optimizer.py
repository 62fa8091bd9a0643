"""Optimizers follow the parameters: same objects, same groups, state carried into the new coordinates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pcn.errors import PlanError
from pcn.rewriting.replaced import FIRST_MOMENTS, SECOND_MOMENTS, Replaced

Kinds = tuple[type[Optimizer], ...]
State = dict[str, Any]

CARRIED: Kinds = (SGD, Adam, AdamW)


@torch.inference_mode(False)  # what is made in inference mode could not be added to
@torch.no_grad()
def follow_(
    optimizers: Sequence[Optimizer],
    replaced: Sequence[Replaced],
    gone: Iterable[nn.Parameter] = (),
    *,
    carried: Kinds = CARRIED,
) -> None:
    """Put each new parameter where its predecessor is held, and give it the state that it would have had.

    In optimizers of other kinds than ``carried``, new parameters start without state. A gained bias stands behind its
    weight, with that group's learning rate and decay, and starts as if it had never had a gradient. Those that are
    ``gone`` have no successor.
    """
    moved = [_moved(optimizer, optimizers, replaced, carried) for optimizer in optimizers]
    for optimizer, state in zip(optimizers, moved, strict=True):  # nothing above changes one, and nothing below fails
        _exchange_(optimizer, replaced, {id(parameter): parameter for parameter in gone})
        optimizer.state.update(state)


def held_by(optimizers: Iterable[Optimizer]) -> set[int]:
    """The ids of all parameters that stand in some group."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return {id(parameter) for group in groups for parameter in group["params"]}


def first_state(optimizer: Optimizer, replaced: Sequence[Replaced]) -> dict[Tensor, State]:
    """The state that an optimizer of this kind gives new parameters when it is made; most give it at their first step.

    Raises when it takes the old ones and not these.
    """
    held = held_by([optimizer])
    known = [change for change in replaced if id(change.old) in held]
    if isinstance(optimizer, CARRIED) or not known:
        return {}
    joining = [p for change in known for p in (change.new, *(gained for _, gained in change.gained))]
    try:
        states = _made_for(joining, optimizer)
    except Exception as error:
        try:
            _made_for([change.old for change in known], optimizer)
        except Exception:
            return {}  # its constructor is of another form
        raise PlanError(
            f"{type(optimizer).__name__} does not take the new parameters ({error}); a layer without a bias gains "
            "one in the group of its weight: give such layers a bias from the start, or exclude them"
        ) from error
    return {parameter: state for parameter, state in zip(joining, states, strict=True) if state}


def unknown_entries(state: State) -> list[str]:
    """The entries that hold a number for every entry of the parameter, in a way that we know nothing of."""
    known = FIRST_MOMENTS + SECOND_MOMENTS
    return [entry for entry, value in state.items() if isinstance(value, Tensor) and value.ndim and entry not in known]


def _made_for(parameters: list[nn.Parameter], optimizer: Optimizer) -> list[State]:
    twins = [nn.Parameter(p.detach(), p.requires_grad) for p in parameters]  # so that nothing is hung on the real ones
    made = type(optimizer)(twins, **optimizer.defaults)
    return [made.state.get(twin, {}) for twin in twins]


def _exchange_(optimizer: Optimizer, replaced: Sequence[Replaced], gone: dict[int, nn.Parameter]) -> None:
    by_old = {id(change.old): change for change in replaced}
    for group in optimizer.param_groups:
        names = group.get("param_names")
        pairs = list(_successors(group["params"], names, by_old, gone))
        group["params"][:] = [parameter for parameter, _ in pairs]
        if names is not None:
            names[:] = [name for _, name in pairs]
    for parameter in (*(change.old for change in replaced), *gone.values()):
        optimizer.state.pop(parameter, None)


def _successors(
    parameters: list[nn.Parameter], names: list[str] | None, by_old: dict[int, Replaced], gone: Collection[int]
) -> Iterator[tuple[nn.Parameter, str]]:
    """Yield what stands in a group afterwards, with its name where the group knows names."""
    for position, parameter in enumerate(parameters):
        name = names[position] if names else ""
        change = by_old.get(id(parameter))
        if change is not None:
            yield change.new, name
            for attribute, gained in change.gained:
                yield gained, f"{name.rpartition('.')[0]}.{attribute}" if name else ""
        elif id(parameter) not in gone:
            yield parameter, name


def _moved(
    optimizer: Optimizer, others: Sequence[Optimizer], replaced: Sequence[Replaced], carried: Kinds
) -> dict[Tensor, State]:
    """The state of the new parameters in an optimizer, which changes nothing in it."""
    moved = first_state(optimizer, replaced)
    if isinstance(optimizer, carried):
        for change in replaced:
            moved |= _carried(change, optimizer, others)
    return moved


def _carried(change: Replaced, optimizer: Optimizer, others: Sequence[Optimizer]) -> dict[Tensor, State]:
    state = optimizer.state.get(change.old) or {}
    if not state or unknown_entries(state):
        return {}
    bias_state = _history(change.old_bias, (optimizer, *others))
    carried: dict[Tensor, State] = {change.new: {}}
    for entry, value in state.items():
        known = entry in FIRST_MOMENTS + SECOND_MOMENTS and isinstance(value, Tensor)
        carried[change.new][entry] = change.carried(entry, value, bias_state.get(entry)) if known else value
    if isinstance(state.get("momentum_buffer"), Tensor):  # fused SGD wants all parameters to have one, or none
        carried |= {gained: {"momentum_buffer": torch.zeros_like(gained)} for _, gained in change.gained}
    return carried


def _history(parameter: nn.Parameter | None, optimizers: Iterable[Optimizer]) -> State:
    """What the first optimizer that knows a parameter keeps of it; entries of one name mean the same in these kinds."""
    if parameter is None:
        return {}
    states = (optimizer.state.get(parameter) for optimizer in optimizers if isinstance(optimizer, CARRIED))
    return next((state for state in states if state), {})
