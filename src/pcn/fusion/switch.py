"""Whether a batch norm runs fused: where there are kernels, unless stock code is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from pcn.kernels.dispatch import uses_kernel
from pcn.running.stock import switched_on

_state = {"everywhere": False}


def fuses(x: Tensor) -> bool:
    """Whether a batch norm of this tensor runs in one pass with what follows."""
    return switched_on() and (_state["everywhere"] or uses_kernel(x))


@contextmanager
def everywhere() -> Iterator[None]:
    """Run fused code inside also where there is no kernel: in plain PyTorch, which is slower than stock layers."""
    before, _state["everywhere"] = _state["everywhere"], True
    try:
        yield
    finally:
        _state["everywhere"] = before
