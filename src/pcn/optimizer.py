"""The optimizer follows the parameters: same object, same groups, state carried into the new coordinates."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

from pcn.errors import ConfigError, PlanError
from pcn.replaced import FIRST_MOMENTS, SECOND_MOMENTS, Replaced

CARRIED = (SGD, Adam, AdamW)

State = dict[str, Any]


def check_is_optimizer(optimizer: Optimizer | None) -> None:
    """Raise for what is neither an optimizer nor None."""
    if optimizer is not None and not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
        given = optimizer.__name__ if isinstance(optimizer, type) else f"of type {type(optimizer).__name__}"
        raise ConfigError(
            f"the optimizer is {given}: give the one that trains this model, such as torch.optim.SGD(...), or None"
        )


def check_optimizer(optimizer: Optimizer, *, strict: bool) -> None:
    """Say beforehand whether an optimizer's state can go along: warn that it is reset, or refuse in strict mode."""
    check_is_optimizer(optimizer)
    if isinstance(optimizer, LBFGS):
        raise PlanError(
            "LBFGS keeps one history of all parameters together, which no replaced parameter fits into; "
            "switch without it and make a new one afterwards"
        )
    unknown = sorted({entry for state in optimizer.state.values() for entry in _unknown(state)})
    if not isinstance(optimizer, CARRIED):
        why = "is not SGD, Adam or AdamW"
    elif unknown:
        why = f"remembers {unknown[0]!r}, which is unknown"
    else:
        return
    text = f"{type(optimizer).__name__} {why}: its state for replaced parameters starts afresh"
    if strict:
        raise PlanError(f"{text}; pass strict=False to accept that")
    warnings.warn(text, stacklevel=4)


def check_holds(optimizer: Optimizer, replaced: list[Replaced]) -> None:
    """Raise unless an optimizer has some of the parameters that give way, and takes those that come in their place."""
    held = _held(optimizer)
    trained = [change for change in replaced if change.old.requires_grad]
    if trained and not any(id(change.old) in held for change in trained):
        raise PlanError(
            "the optimizer holds none of the parameters that are replaced; give the one that trains this model"
        )
    _first_state(optimizer, replaced)


@torch.inference_mode(False)  # what is made in inference mode could not be added to
@torch.no_grad()
def follow_(optimizer: Optimizer, replaced: list[Replaced], *, carry: bool = True) -> None:
    """Put the new parameters into the old ones' groups and give them the state that they would have had.

    With ``carry=False`` they start without state.

    A gained bias stands behind its weight, with that group's learning rate and decay, and starts as if it had never
    had a gradient.
    """
    by_old = {id(change.old): change for change in replaced}
    moved: dict[Tensor, State] = _first_state(optimizer, replaced)
    if carry and isinstance(optimizer, CARRIED):
        for change in replaced:
            moved |= _carried(change, optimizer)
    for group in optimizer.param_groups:
        names = group.get("param_names")
        pairs = list(_successors(group["params"], names, by_old))
        group["params"][:] = [parameter for parameter, _ in pairs]
        if names is not None:
            names[:] = [name for _, name in pairs]
    for change in replaced:
        optimizer.state.pop(change.old, None)
    optimizer.state.update(moved)


def _held(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _first_state(optimizer: Optimizer, replaced: list[Replaced]) -> dict[Tensor, State]:
    """The state that an optimizer of this kind gives new parameters when it is made; most give it at their first step.

    Raises when it takes the old ones and not these.
    """
    held = _held(optimizer)
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


def _made_for(parameters: list[nn.Parameter], optimizer: Optimizer) -> list[State]:
    twins = [nn.Parameter(p.detach(), p.requires_grad) for p in parameters]  # so that nothing is hung on the real ones
    made = type(optimizer)(twins, **optimizer.defaults)
    return [made.state.get(twin, {}) for twin in twins]


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


def _unknown(state: State) -> list[str]:
    """The entries that hold a number for every entry of the parameter, in a way that we know nothing of."""
    known = FIRST_MOMENTS + SECOND_MOMENTS
    return [entry for entry, value in state.items() if isinstance(value, Tensor) and value.ndim and entry not in known]


def _carried(change: Replaced, optimizer: Optimizer) -> dict[Tensor, State]:
    state = optimizer.state.get(change.old) or {}
    if not state or _unknown(state):
        return {}
    bias_state = {} if change.old_bias is None else optimizer.state.get(change.old_bias) or {}
    carried: dict[Tensor, State] = {change.new: {}}
    for entry, value in state.items():
        known = entry in FIRST_MOMENTS + SECOND_MOMENTS and isinstance(value, Tensor)
        carried[change.new][entry] = change.carried(entry, value, bias_state.get(entry)) if known else value
    if isinstance(state.get("momentum_buffer"), Tensor):  # fused SGD wants all parameters to have one, or none
        carried |= {gained: {"momentum_buffer": torch.zeros_like(gained)} for _, gained in change.gained}
    return carried
