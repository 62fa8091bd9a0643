"""Who computes with a layer's weight or bias without calling the layer: seen while the model runs, in both modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pcn.layers import transformable_layers
from pcn.running.example import Example
from pcn.running.untouched import counting_alone, untouched

COLLECTIVES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}  # namespaces of operators
LIKE = {Tensor.to: 1, Tensor.type_as: 1}  # functions that ask a tensor at this place for its dtype and device alone


def read_directly(model: nn.Module, example: Example) -> dict[str, str]:
    """Find the layers with whose own tensors somebody else computes, each with who does: the first to do so.

    The model runs on the example, once in eval mode and once in train mode; whatever it raises is for others to tell.
    Of several processes one may do this alone: where the model would wait for the others, it is given up.
    """
    layers = {name: layer for name, layer, why in transformable_layers(model) if why is None}
    names = {id(module): name for name, module in model.named_modules()}
    owners = {id(tensor): (name, layer) for name, layer in layers.items() for tensor in layer.parameters(recurse=False)}
    found: dict[str, str] = {}
    for training in (False, True):
        with _running(model, training), _module_stack() as stack:

            def told(tensor: Tensor, stack: list[nn.Module] = stack) -> None:
                name, layer = owners[id(tensor)]
                inside = stack[-1] if stack else model
                if inside is not layer:
                    found.setdefault(name, names.get(id(inside)) or type(inside).__name__)

            with suppress(Exception), NobodyElse(), UsesOf(owners, told):  # type: ignore[no-untyped-call]
                example.call(model)
    return found


class NobodyElse(TorchDispatchMode):
    """Raises where a process would wait for others, which do not come."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in COLLECTIVES:
            raise RuntimeError(f"{func} waits for other processes")
        return func(*args, **(kwargs or {}))


class UsesOf(TorchFunctionMode):
    """Tells of every operation on one of some tensors, known by their ids, that makes another tensor out of it.

    What puts out no tensor, like its shape or its dtype, only looks at it.
    """

    def __init__(self, tensors: Iterable[int], told: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.tensors, self.told = set(tensors), told

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        computed = [arg for place, arg in enumerate(args) if LIKE.get(func) != place]
        used = [leaf for leaf in tree_leaves((computed, kwargs or {})) if id(leaf) in self.tensors]
        if used and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            for tensor in used:
                self.told(tensor)
        return result


@contextmanager
def _running(model: nn.Module, training: bool) -> Iterator[None]:
    """Have the model run without a trace, in one of its two modes."""
    with untouched(model, "train" if training else "eval"):
        if not training:
            yield
            return
        model.train()
        with counting_alone(module for module in model.modules() if isinstance(module, _BatchNorm)):
            yield


@contextmanager
def _module_stack() -> Iterator[list[nn.Module]]:
    """Keep a list of the modules whose calls have begun and not ended, the innermost last."""
    stack: list[nn.Module] = []

    def enter(module: nn.Module, args: Any) -> None:
        stack.append(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if stack and stack[-1] is module:
            stack.pop()

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        with torch.no_grad():
            yield stack
    finally:
        for handle in handles:
            handle.remove()
