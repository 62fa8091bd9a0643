"""Whether somebody watches a module: hooks want tensors."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules import module as torch_module


def hooked(module: nn.Module) -> bool:
    """Whether a module has hooks of its own, of whatever kind."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def watched(modules: Iterable[nn.Module]) -> bool:
    """Whether any of these modules, or every module there is, has hooks at this moment."""
    everywhere = (
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )
    return bool(everywhere) or any(hooked(module) for module in modules)
