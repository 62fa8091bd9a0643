"""Whether a model's code does something else while it trains, and having it do so."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.jit import ScriptModule
from torch.nn.modules import batchnorm, dropout

# Layers of these files do the same with the same channels in train mode, but for the numbers.
ALIKE = (batchnorm.__name__, dropout.__name__)


def train_code_(model: nn.Module) -> None:
    """Have a model's own code train, while PyTorch's batch norm and dropout go on as at inference.

    These ask for several samples, wait for other processes and draw random numbers, and no channel goes another way.
    """
    model.train()
    for module in model.modules():
        if _is_alike(module):
            module.training = False


class ModeAsked:
    """Notes, inside a ``with``, whether code asks modules for their mode, PyTorch's batch norm and dropout left out.

    The modules change their class for that, for good: give those of a copy.

    >>> model = nn.Sequential(nn.Dropout(), nn.RReLU())
    >>> with ModeAsked(model) as asked:
    ...     _ = model[1].training
    >>> asked.happened
    True
    """

    def __init__(self, model: nn.Module) -> None:
        self.happened = self._looking = False
        for module in model.modules():
            if _has_own_mode(module):
                self.happened = True
            elif not _is_alike(module):
                self._watch_(module)

    def __enter__(self) -> ModeAsked:
        self._looking = True
        return self

    def __exit__(self, *error: object) -> None:
        self._looking = False

    def _watch_(self, module: nn.Module) -> None:
        def read(watched: nn.Module) -> Any:
            self.happened |= self._looking
            return watched.__dict__["training"]

        def write(watched: nn.Module, mode: bool) -> None:
            watched.__dict__["training"] = mode

        cls: Any = type(module)
        try:
            module.__class__ = type(cls.__name__, (cls,), {"training": property(read, write)})
        except Exception:  # not every class may have subclasses, or such
            self.happened = True


def _is_alike(module: nn.Module) -> bool:
    return type(module).__module__ in ALIKE


def _has_own_mode(module: nn.Module) -> bool:
    """Whether a class keeps its mode elsewhere, or sets more along with it, for which code may ask instead."""
    cls = type(module)
    sets = (cls.train, cls.eval) != (nn.Module.train, nn.Module.eval)
    return sets or hasattr(cls, "training") or isinstance(module, ScriptModule)
