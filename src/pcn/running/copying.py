"""A copy of a model, also of one in the middle of its training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pcn.errors import PlanError, first_line


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Copy a model deeply; ``memo`` says what stands in the copy for objects of these ids, as for ``copy.deepcopy``.

    A tensor that autograd has computed, such as a loss that the last step has left in an attribute, comes without its
    history, with which torch would not copy it.
    """
    try:
        with _WithoutHistory():
            return copy.deepcopy(model, memo)
    except Exception as error:
        raise PlanError(
            f"the model cannot be copied: {type(error).__name__}: {first_line(error)}; hold what torch or Python does "
            "not copy outside the model"
        ) from error


def copied_around(model: nn.Module) -> nn.Module:
    """Copy a model around its parameters and buffers, which the copy shares: for what does not write to them."""
    return copied(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def copied_without_values(model: nn.Module) -> nn.Module:
    """Copy a model with parameters and buffers that hold nothing: for code of its own that writes to them."""
    memo: dict[int, Any] = {id(b): b.detach().to("meta") for b in model.buffers()}
    memo |= {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}
    return copied(model, memo)


class _WithoutHistory(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))
