"""Whether fused modules run fused: where there are kernels, and not while a model is exported as stock operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pcn.kernels.dispatch import uses_kernel

_state = {"on": True, "everywhere": False}


def switched_on() -> bool:
    """Whether fused modules run their own code."""
    # torch.compile of torch 2.11 takes torch.compiler.is_exporting() for True; the flag behind it means export alone.
    return _state["on"] and not torch.compiler._is_exporting_flag


def fuses(x: Tensor) -> bool:
    """Whether a batch norm of this tensor runs in one pass with what follows."""
    return switched_on() and (_state["everywhere"] or uses_kernel(x))


@contextmanager
def plain() -> Iterator[None]:
    """Run fused models by their stock code inside: for hooks that want tensors, or to compare."""
    before, _state["on"] = _state["on"], False
    try:
        yield
    finally:
        _state["on"] = before


@contextmanager
def everywhere() -> Iterator[None]:
    """Run fused code inside also where there is no kernel: in plain PyTorch, which is slower than stock layers."""
    before, _state["everywhere"] = _state["everywhere"], True
    try:
        yield
    finally:
        _state["everywhere"] = before
