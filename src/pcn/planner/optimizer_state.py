"""How many numbers an optimizer keeps for each one that it trains."""

from __future__ import annotations

from torch import Tensor, optim
from torch.optim import Optimizer

from pcn.running.optimizers import Optimizers, as_optimizers

STATE = {"sgd": 0, "momentum": 1, "adam": 2, "amsgrad": 3}  # numbers beside each trained one, of the same kind
ADAMS = (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam)
OF_ADAM = ("adam", "amsgrad")
DEFAULT = "momentum"


def numbers_kept(optimizer: str | None) -> int:
    """The numbers that an optimizer of this name keeps; without one, those of SGD with momentum."""
    return STATE[optimizer or DEFAULT]


def kind_of(optimizer: Optimizers) -> str | None:
    """The name of what an optimizer keeps, the most of several; None for none, and for those that nobody knows here.

    What is no kind of Adam or SGD is known by its state, once it has made a step.

    >>> from torch import nn
    >>> kind_of(optim.AdamW(nn.Linear(2, 2).parameters()))
    'adam'
    """
    kinds = [_kind(each) for each in as_optimizers(optimizer)]
    known = [kind for kind in kinds if kind is not None]
    return max(known, key=numbers_kept) if known and len(known) == len(kinds) else None


def steps_like_adam(optimizer: Optimizers) -> bool:
    """Whether all of a model's optimizers move every weight by about their rate, however small its gradient."""
    return all(isinstance(each, ADAMS) for each in as_optimizers(optimizer))


def _kind(optimizer: Optimizer) -> str | None:
    if isinstance(optimizer, ADAMS):
        return "amsgrad" if any(group.get("amsgrad") for group in optimizer.param_groups) else "adam"
    if isinstance(optimizer, optim.SGD):
        return "momentum" if any(group["momentum"] for group in optimizer.param_groups) else "sgd"
    return _seen(optimizer)


def _seen(optimizer: Optimizer) -> str | None:
    """The least kind that keeps as much as is found for the parameters that have a state already; None without one."""
    trained = held = 0
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, Tensor) and state:
            trained += parameter.nbytes
            # Counters of steps are single numbers.
            held += sum(value.nbytes for value in state.values() if isinstance(value, Tensor) and value.numel() > 1)
    kinds = (kind for kind, numbers in STATE.items() if numbers * trained >= held)
    return next(kinds, None) if trained else None
