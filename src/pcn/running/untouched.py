"""Running a model without leaving a trace on it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcn.errors import ConfigError
from pcn.running.copying import copied_without_values
from pcn.running.seeded import other_numbers_kept
from pcn.running.stock import plain

Mode = Literal["eval", "batch", "train"]
MODES: tuple[Mode, ...] = get_args(Mode)
Container = dict[Any, Any] | list[Any] | set[Any]
CONTAINERS = (dict, OrderedDict, defaultdict, list, set)  # one's own may refuse to be copied, emptied or filled


@contextmanager
def untouched(model: nn.Module, mode: Mode = "eval") -> Iterator[None]:
    """Run a model eagerly and without gradients; what it holds, its modes and random numbers are put back afterwards.

    It runs in eval mode; with ``"batch"`` batch norms normalise by the batch's own statistics, as in training, while
    dropout is off; with ``"train"`` it runs as it stands. Batch norms that are frozen stay so where the model stands in
    train mode, or freezes them itself in its ``train()``.

    A hook on a part of a compiled model does not fire, so that compiled code is passed by; fused modules hand values
    on that hooks could not read, so that their stock code runs. For a few batches of another size, cuDNN's search for
    the fastest kernels would take longer than they do.
    """
    with ExitStack() as stack:
        stack.enter_context(same_modes(model))
        stack.enter_context(same_holdings(model))
        stack.enter_context(_same_buffers(model))
        stack.enter_context(torch.random.fork_rng(devices=_cuda_devices(model)))
        stack.enter_context(other_numbers_kept())
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_without_search())
        stack.enter_context(plain())
        if mode == "eval":
            model.eval()
        elif mode == "batch":
            stack.enter_context(_batch_statistics(model))
        yield


def checked_mode(mode: Mode) -> Mode:
    """Return the mode, if there is one of that name.

    >>> checked_mode("batch")
    'batch'
    """
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r}: give one of {', '.join(MODES)}")
    return mode


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, but for batch norms that would train: those that are frozen stay so."""
    names = training_norms(model)
    norms = [module for name, module in model.named_modules() if name in names and isinstance(module, _BatchNorm)]
    model.eval()
    for norm in norms:
        norm.train()
    with counting_alone(norms):
        yield


def training_norms(model: nn.Module) -> set[str]:
    """The names of the batch norms that normalise by the batch while a model trains; nothing of it changes.

    Where a model stands in eval mode, its own ``train()`` is called on a copy; where that fails, all of them count.

    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    >>> _ = model[1].eval()
    >>> training_norms(model)
    {'0'}
    """
    norms = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    if not model.training:
        try:
            # One that keeps some of its norms frozen does so there, and may do more, such as merge weights.
            model = copied_without_values(model).train()
        except Exception:  # whatever a model's own code raises on tensors without values
            return norms
    return {name for name, module in model.named_modules() if name in norms and _by_batch(module)}


def _by_batch(norm: nn.Module) -> bool:
    return norm.training or norm.running_mean is None


@contextmanager
def counting_alone(norms: Iterable[_BatchNorm]) -> Iterator[None]:
    """Have synchronised batch norms count the samples of this process: others may have fewer batches."""
    synced = [norm for norm in norms if isinstance(norm, nn.SyncBatchNorm) and "forward" not in norm.__dict__]
    try:
        for norm in synced:
            norm.__dict__["forward"] = partial(_BatchNorm.forward, norm)
        yield
    finally:
        for norm in synced:
            norm.__dict__.pop("forward", None)


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
def same_holdings(model: nn.Module) -> Iterator[None]:
    """Give every module back its attributes, tensors, parts and hooks: what its code makes while it runs comes again.

    What it notes belongs to what it makes. A length for which a buffer was made anew, or a mark that hooks are there,
    is wrong without them, and a tracer's tensors are of no use to anybody.

    >>> model = nn.Linear(2, 2)
    >>> with same_holdings(model):
    ...     model.calls, model.bias = 1, None
    >>> hasattr(model, "calls"), model.bias is None
    (False, False)
    """
    attributes = [vars(module) for module in model.modules()]
    containers = (each for held in attributes for each in held.values() if type(each) in CONTAINERS)
    kept = [(now, now.copy()) for now in (*attributes, *containers)]
    try:
        yield
    finally:
        for now, before in kept:
            if _identities(now) != _identities(before):
                now.clear()
                now.extend(before) if isinstance(now, list) else now.update(before)


def _identities(container: Container) -> list[int]:
    return [id(each) for each in (*container, *(container.values() if isinstance(container, dict) else ()))]


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    kept = [
        (module._buffers, name, buffer, buffer.clone(), _version(buffer))
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_meta  # which have no values
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
