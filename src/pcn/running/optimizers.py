"""The optimizers that are given: none, one, or all that train a model together."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from pcn.errors import ConfigError

Optimizers = Optimizer | Sequence[Optimizer] | None


def as_optimizers(given: Optimizers) -> tuple[Optimizer, ...]:
    """The optimizers that are given: none, one, or all that train a model together, without Accelerate's wrapper.

    >>> from torch import nn, optim
    >>> as_optimizers(None), len(as_optimizers(optim.SGD(nn.Linear(2, 2).parameters())))
    ((), 1)
    """
    if given is None:
        return ()
    several = isinstance(given, Sequence) and not isinstance(given, str)
    optimizers = tuple(given) if isinstance(given, Sequence) else (given,)
    if not optimizers:
        raise ConfigError("the list of optimizers is empty: give those that train this model, or None")
    for optimizer in optimizers:
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
            said = optimizer.__name__ if isinstance(optimizer, type) else f"of type {type(optimizer).__name__}"
            raise ConfigError(
                f"{'an optimizer in the list' if several else 'the optimizer'} is {said}: give the one that trains "
                "this model, such as torch.optim.SGD(...), a list of them where there are several, or None"
            )
    found = tuple(map(_bare, optimizers))
    groups = [group for optimizer in found for group in _groups(optimizer)]
    if len(set(groups)) < len(groups):
        raise ConfigError(
            "two of the optimizers in the list share their parameter groups, so that all in these would be trained "
            "twice: give each once, and of a wrapper and its base, as SAM's, the base alone"
        )
    return found


def _bare(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a wrapper that has its groups, such as Accelerate's: its class says what its state is."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer) and inner is not optimizer and _groups(inner) == _groups(optimizer):
        return _bare(inner)
    return optimizer


def _groups(optimizer: Optimizer) -> list[int]:
    """The groups themselves, by their ids: wrappers share them."""
    return [id(group) for group in optimizer.param_groups]
