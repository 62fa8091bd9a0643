"""A model's graphs in training and at inference, and what no graph shows: code that has to be given tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn
from torch.autograd.function import Function
from torch.utils import checkpoint

from pcn.errors import TraceError, first_line
from pcn.graph.trace import capture
from pcn.running.example import Example


def graphs(model: nn.Module, example: Example) -> tuple[list[fx.Graph], str | None]:
    """Return the graph at inference and that in training, and why nothing may be fused, if that is so."""
    reasons: list[str] = []
    with _noting(reasons):
        found = [capture(model, example).graph]
        try:
            found.append(capture(model, example, training=True).graph)
        except TraceError as error:
            cause = error.__cause__
            reasons.append(f"its training cannot be captured: {type(cause).__name__}: {first_line(cause)}")
    return found, reasons[0] if reasons else None


@contextmanager
def _noting(reasons: list[str]) -> Iterator[None]:
    """Note calls of autograd functions and of checkpoint: in a graph they look like the operators inside them."""
    holder: Any = Function
    apply, recompute = holder.__dict__["apply"], checkpoint._checkpoint_without_reentrant_generator

    def noted_apply(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        reasons.append(f"the model calls {cls.__name__}, an autograd function, which wants tensors")
        return apply.__get__(None, cls)(*arguments, **keywords)

    def noted_recompute(*arguments: Any, **keywords: Any) -> Any:
        reasons.append("the model calls torch.utils.checkpoint, which wants tensors")
        return recompute(*arguments, **keywords)

    holder.apply = classmethod(noted_apply)
    checkpoint._checkpoint_without_reentrant_generator = noted_recompute
    try:
        yield
    finally:
        holder.apply = apply
        checkpoint._checkpoint_without_reentrant_generator = recompute
