"""Whether fused modules run their own code or the stock layers': those where hooks look, and in what is exported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_state = {"on": True}


def switched_on() -> bool:
    """Whether fused modules run their own code."""
    # torch.compile of torch 2.11 takes torch.compiler.is_exporting() for True; the flag behind it means export alone.
    return _state["on"] and not torch.compiler._is_exporting_flag


@contextmanager
def plain() -> Iterator[None]:
    """Run fused models by their stock code inside: for hooks that want tensors, or to compare."""
    before, _state["on"] = _state["on"], False
    try:
        yield
    finally:
        _state["on"] = before
