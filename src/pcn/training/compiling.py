"""What of a model is compiled: its blocks one by one, where some are alike and need to be compiled only once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pcn.fusion.norms import FusedNorm
from pcn.layers import unwrap

MOST = 0.8  # of a model's layers: blocks that hold fewer leave too much uncompiled
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # what stands in one is up to each model

# Choosing among two to six configurations of every pointwise kernel doubles what is compiled, and each is then timed.
UNTUNED = {"triton.autotune_pointwise": False}
# Kernels that do not need each other, like the updates of all running statistics, are launched as one.
COMBINED = {"combo_kernels": True, "benchmark_combo_kernel": False}
# Autocast is entered with constants, which stand in the graph: a graph that does so can be found again on disk.
CACHEABLE = {f"torch.amp.autocast_mode.{name}": "constants" for name in ("_enter_autocast", "_exit_autocast")}

Forwards = dict[nn.Module, Callable[..., Any]]


def compile_parts(
    model: nn.Module,
    *,
    whole: bool = False,
    tuned: bool = False,
    combined: bool = False,
    backend: str | Callable[..., Any] = "inductor",
) -> Forwards:
    """Have ``torch.compile`` make forward methods for a model's blocks, or for all of it; :func:`running` uses them.

    A fused model is compiled as a whole: what goes from one block to the next is not computed yet. ``tuned`` finds the
    fastest of several configurations of every kernel, ``combined`` makes one kernel of several small ones. What was
    compiled before is forgotten: after a few networks the compiler would fall back to eager.
    """
    torch.compiler.reset()
    options: dict[str, Any] | None = None
    if backend == "inductor":
        options = {"unsafe_marked_cacheable_functions": CACHEABLE, **({} if tuned else UNTUNED)}
        options |= COMBINED if combined else {}
    fused = any(isinstance(module, FusedNorm) for module in unwrap(model).modules())
    parts = [unwrap(model)] if whole or fused else blocks(model) or [unwrap(model)]
    return {
        part: torch.compile(part.forward, dynamic=False, fullgraph=True, backend=backend, options=options)
        for part in parts
    }


@contextmanager
def running(forwards: Forwards) -> Iterator[None]:
    """Run modules by other forward methods than their own; forward and backward pass belong into the same ``with``."""
    if not forwards:
        yield
        return
    limit = max(torch._dynamo.config.recompile_limit, len(forwards))  # blocks of one class share their code
    with ExitStack() as undo, torch._dynamo.config.patch(recompile_limit=limit):
        for module, forward in forwards.items():
            undo.callback(_set_forward_, module, module.__dict__.get("forward"))
            _set_forward_(module, forward)
        yield


def _set_forward_(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    if forward is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = forward


def blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost modules of classes of which the model has two alike; none when they hold too little of it.

    >>> from pcn.models import resnet20, conv4
    >>> len(blocks(resnet20())), len(blocks(conv4()))
    (9, 0)
    """
    repeated = _repeated_classes(model)
    found = list(_outermost(model, repeated))
    held = sum(len(_layers(block)) for block in found)
    return found if held >= MOST * len(_layers(model)) else []


def _repeated_classes(model: nn.Module) -> set[type[nn.Module]]:
    seen: dict[type[nn.Module], list[object]] = defaultdict(list)
    for module in model.modules():
        if type(module) not in CONTAINERS and any(True for _ in module.children()):
            seen[type(module)].append(_sizes(module))
    return {kind for kind, sizes in seen.items() if any(sizes.count(each) > 1 for each in sizes)}


def _sizes(module: nn.Module) -> list[tuple[str, torch.Size]]:
    tensors: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    return [(name, tensor.shape) for name, tensor in tensors]


def _outermost(module: nn.Module, kinds: set[type[nn.Module]]) -> Iterator[nn.Module]:
    if type(module) in kinds:
        yield module
    else:
        for child in module.children():
            yield from _outermost(child, kinds)


def _layers(module: nn.Module) -> list[nn.Module]:
    """The modules with parameters of their own."""
    return [each for each in module.modules() if any(True for _ in each.parameters(recurse=False))]
