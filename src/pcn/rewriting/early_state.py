"""State that was loaded into optimizers before the model got the shapes that it was saved with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten

from pcn.rewriting.optimizer import State, made_for
from pcn.rewriting.optimizer_checks import object_to
from pcn.rewriting.replaced import Replaced


class Early(NamedTuple):
    """What an optimizer holds for a parameter that is about to give way."""

    optimizer: Optimizer
    change: Replaced
    state: State

    @property
    def fits(self) -> bool:
        """Whether all that it holds per entry has the new parameter's shape."""
        return self._shapes <= {self.change.new.shape}

    @property
    def tells(self) -> bool:
        """Whether the old parameter can have had no such state."""
        return self.fits and bool(self._shapes) and self.change.new.shape != self.change.old.shape

    @property
    def _shapes(self) -> set[torch.Size]:
        return {value.shape for value in self.state.values() if isinstance(value, Tensor) and value.ndim}


def loaded_early(optimizers: Sequence[Optimizer], replaced: Sequence[Replaced], *, strict: bool) -> list[Early]:
    """The state that was saved for the new parameters and stands with the old ones, whose places they take.

    What may be the old parameters' own is of no use to the new ones: warn that it goes, or refuse in strict mode.
    """
    held = {optimizer: _held(optimizer, replaced) for optimizer in optimizers}
    untold = [optimizer for optimizer, found in held.items() if not _told(found)]
    if untold:
        names = " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in untold))
        object_to(
            f"{names} held state for parameters that the plan replaces, which cannot be told to be that of their "
            "successors and starts afresh: load the switch's state first, then the model's, then the optimizers'",
            strict=strict,
        )
    return [early for optimizer, found in held.items() if optimizer not in untold for early in found]


def _told(found: list[Early]) -> bool:
    """Whether all that one optimizer holds is the new parameters': none vouches for another, which may be loaded later.

    Vectors are cut at the most, and their state is the same either way.
    """
    vectors = all(early.change.old.ndim == 1 for early in found)
    return all(early.fits for early in found) and (vectors or any(early.tells for early in found))


def _held(optimizer: Optimizer, replaced: Sequence[Replaced]) -> list[Early]:
    states = [(change, optimizer.state.get(change.old) or {}) for change in replaced]
    held = [Early(optimizer, change, state) for change, state in states if any(v is not None for v in state.values())]
    return [] if _as_made(optimizer, held) else held


def _as_made(optimizer: Optimizer, held: list[Early]) -> bool:
    """Whether the optimizer holds only what it gives every parameter from the start, as Adagrad does."""
    parameters: list[nn.Parameter] = [early.change.old for early in held]
    try:
        first = made_for(parameters, optimizer) if held else []
    except Exception:
        return False  # its constructor is of another form
    return all(_equal(early.state, state) for early, state in zip(held, first, strict=True))


def _equal(one: State, other: State) -> bool:
    (ours, form), (theirs, same_form) = tree_flatten(one), tree_flatten(other)
    return form == same_form and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or bool(a == b)
        for a, b in zip(ours, theirs, strict=True)
    )
