"""Optimizers follow the parameters: same objects, same groups, state carried into the new coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer
from torch.utils._pytree import tree_leaves

from pcn.errors import PlanError
from pcn.rewriting.groups import TAKES_ALL, Member, held_by, members_after
from pcn.rewriting.replaced import FIRST_MOMENTS, SECOND_MOMENTS, Replaced

Kinds = tuple[type[Optimizer], ...]
State = dict[str, Any]

CARRIED: Kinds = (SGD, Adam, AdamW, Muon)


@torch.inference_mode(False)  # what is made in inference mode could not be added to
@torch.no_grad()
def follow_(
    optimizers: Sequence[Optimizer],
    replaced: Sequence[Replaced],
    gone: Sequence[nn.Parameter] = (),
    *,
    carried: Kinds = CARRIED,
) -> None:
    """Put each new parameter where its predecessor is held, and give it the state that it would have had.

    In optimizers of other kinds than ``carried``, new parameters start without state. A gained bias stands behind its
    weight, with that group's learning rate and decay (:func:`pcn.rewriting.groups.home` has the exception), and starts
    as if it had never had a gradient. Those that are ``gone`` have no successor.
    """
    after = members_after(optimizers, replaced, gone)
    moved = [_moved(optimizer, optimizers, replaced, after, carried) for optimizer in optimizers]
    for optimizer, state in zip(optimizers, moved, strict=True):  # nothing above changes one, and nothing below fails
        _exchange_(optimizer, after)
        for parameter in (*(change.old for change in replaced), *gone):
            optimizer.state.pop(parameter, None)
        optimizer.state.update(state)


def first_state(optimizer: Optimizer, after: dict[int, list[Member]]) -> dict[Tensor, State]:
    """The state that an optimizer of this kind gives new parameters when it is made; most give it at their first step.

    Raises when it takes the old ones and not these.
    """
    held = held_by([optimizer])
    joining = [p for group in optimizer.param_groups for p, _ in after[id(group)] if id(p) not in held]
    if isinstance(optimizer, TAKES_ALL) or not joining:
        return {}
    try:
        states = made_for(joining, optimizer)
    except Exception as error:
        try:
            made_for([p for group in optimizer.param_groups for p in group["params"]], optimizer)
        except Exception:
            return {}  # its constructor is of another form
        raise PlanError(
            f"{type(optimizer).__name__} does not take the new parameters ({error}); a layer without a bias gains "
            "one, and no optimizer that was given has a group with biases or other vectors for it to join: give the "
            "one that trains such, as in optimizer=[muon, adamw], give these layers a bias from the start, have "
            "them gain none (centred=False), or exclude them"
        ) from error
    return {parameter: state for parameter, state in zip(joining, states, strict=True) if state}


def unknown_entries(state: State) -> list[str]:
    """The entries that hold a number for every entry of the parameter, in a way that we know nothing of."""
    known = FIRST_MOMENTS + SECOND_MOMENTS
    return [entry for entry, value in state.items() if entry not in known and any(map(_has_size, tree_leaves(value)))]


def _has_size(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def made_for(parameters: list[nn.Parameter], optimizer: Optimizer) -> list[State]:
    """The state that a new optimizer of this kind gives such parameters before its first step."""
    twins = [nn.Parameter(p.detach(), p.requires_grad) for p in parameters]  # so that nothing is hung on the real ones
    made = type(optimizer)(twins, **optimizer.defaults)
    return [made.state.get(twin, {}) for twin in twins]


def _exchange_(optimizer: Optimizer, after: dict[int, list[Member]]) -> None:
    for group in optimizer.param_groups:
        members = after[id(group)]
        group["params"][:] = [parameter for parameter, _ in members]
        if group.get("param_names") is not None:
            group["param_names"][:] = [name for _, name in members]


def _moved(
    optimizer: Optimizer,
    others: Sequence[Optimizer],
    replaced: Sequence[Replaced],
    after: dict[int, list[Member]],
    carried: Kinds,
) -> dict[Tensor, State]:
    """The state of the new parameters in an optimizer, which changes nothing in it."""
    moved = first_state(optimizer, after)
    if isinstance(optimizer, carried):
        for change in replaced:
            moved |= _carried(change, optimizer, others)
        if isinstance(optimizer, SGD):
            gained = {id(parameter) for change in replaced for _, parameter in change.gained}
            moved |= _no_momentum(optimizer, gained, after)
    return moved


def _carried(change: Replaced, optimizer: Optimizer, others: Sequence[Optimizer]) -> dict[Tensor, State]:
    state = optimizer.state.get(change.old) or {}
    if not state or unknown_entries(state):
        return {}
    bias_state = _history(change.old_bias, optimizer, others)
    carried: State = {}
    for entry, value in state.items():
        known = entry in FIRST_MOMENTS + SECOND_MOMENTS and isinstance(value, Tensor)
        carried[entry] = change.carried(entry, value, bias_state.get(entry)) if known else value
    mean, largest = (carried.get(entry) for entry in SECOND_MOMENTS)
    if isinstance(mean, Tensor) and isinstance(largest, Tensor):  # each is an estimate of its own
        torch.maximum(mean, largest, out=largest)
    return {change.new: carried}


def _no_momentum(optimizer: SGD, gained: set[int], after: dict[int, list[Member]]) -> dict[Tensor, State]:
    """Momentum of zero for gained parameters where others have some: fused SGD wants all to have one, or none."""
    found: dict[Tensor, State] = {}
    for group in optimizer.param_groups:
        if any(isinstance(optimizer.state.get(p, {}).get("momentum_buffer"), Tensor) for p in group["params"]):
            joining = [parameter for parameter, _ in after[id(group)] if id(parameter) in gained]
            found |= {parameter: {"momentum_buffer": torch.zeros_like(parameter)} for parameter in joining}
    return found


def _history(bias: nn.Parameter | None, optimizer: Optimizer, others: Sequence[Optimizer]) -> State:
    """What is kept of a bias, in the entries of its weight's optimizer: that of the first one that knows it."""
    if bias is None:
        return {}
    if isinstance(optimizer, Muon):  # its momentum is a mean of gradients, as Adam's first moment; SGD's is a sum
        state = _first_known(bias, others, (Adam, AdamW))
        return {"momentum_buffer": state["exp_avg"]} if "exp_avg" in state else {}
    return _first_known(bias, (optimizer, *others), TAKES_ALL)


def _first_known(parameter: nn.Parameter, optimizers: Iterable[Optimizer], kinds: Kinds) -> State:
    states = (optimizer.state.get(parameter) for optimizer in optimizers if isinstance(optimizer, kinds))
    return next((state for state in states if state), {})
