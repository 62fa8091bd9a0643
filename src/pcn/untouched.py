"""Running a model without leaving a trace on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def untouched(model: nn.Module, eval_mode: bool) -> Iterator[None]:
    """Run a model eagerly and without gradients; its modes, buffers and the random numbers are put back afterwards.

    A hook on a part of a compiled model does not fire, so that compiled code is passed by; fused modules hand values
    on that hooks could not read, so that their stock code runs. For a few batches of another size, cuDNN's search for
    the fastest kernels would take longer than they do.
    """
    from pcn.fusion.switch import plain

    with ExitStack() as stack:
        stack.enter_context(same_modes(model))
        stack.enter_context(_same_buffers(model))
        stack.enter_context(torch.random.fork_rng(devices=_cuda_devices(model)))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_without_search())
        stack.enter_context(plain())
        if eval_mode:
            model.eval()
        yield


@contextmanager
def _without_search() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def same_modes(model: nn.Module) -> Iterator[None]:
    """Give every module its own train or eval mode back."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    kept = [
        (module._buffers, name, buffer, buffer.clone(), _version(buffer))
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, values, version in kept:
                buffers[name] = buffer
                # cuDNN's batch norm writes without counting, so the values themselves are asked as well.
                if version is None or _version(buffer) != version or not torch.equal(buffer, values):
                    buffer.copy_(values)


def _version(tensor: Tensor) -> int | None:
    """How often a tensor was written to; inference tensors do not count."""
    return None if tensor.is_inference() else tensor._version


def _cuda_devices(model: nn.Module) -> list[int]:
    tensors = [*model.parameters(), *model.buffers()]
    return sorted({t.device.index for t in tensors if t.device.type == "cuda" and t.device.index is not None})
