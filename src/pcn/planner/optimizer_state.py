"""How many numbers an optimizer keeps for each one that it trains."""

from __future__ import annotations

from torch import optim
from torch.optim import Optimizer

from pcn.running.optimizers import Optimizers, as_optimizers

STATE = {"sgd": 0, "momentum": 1, "adam": 2}  # numbers beside each trained one, of the same kind
ADAMS = (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam)
DEFAULT = "momentum"


def numbers_kept(optimizer: str | None) -> int:
    """The numbers that an optimizer of this name keeps; without one, those of SGD with momentum."""
    return STATE[optimizer or DEFAULT]


def kind_of(optimizer: Optimizers) -> str | None:
    """The name of what an optimizer keeps, the most of several; None for those that are not known here, and for none.

    >>> from torch import nn
    >>> kind_of(optim.AdamW(nn.Linear(2, 2).parameters()))
    'adam'
    """
    kinds = [_kind(each) for each in as_optimizers(optimizer)]
    known = [kind for kind in kinds if kind is not None]
    return max(known, key=numbers_kept) if known and len(known) == len(kinds) else None


def _kind(optimizer: Optimizer) -> str | None:
    if isinstance(optimizer, ADAMS) and not any(group.get("amsgrad") for group in optimizer.param_groups):
        return "adam"
    if isinstance(optimizer, optim.SGD):
        return "momentum" if any(group["momentum"] for group in optimizer.param_groups) else "sgd"
    return None
