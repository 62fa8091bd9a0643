"""What a model costs: parameters as the paper counts them, and floating-point operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from pcn.costs.constants import Constants
from pcn.costs.grouped import GROUPED, GroupedSizes, grouped_flops
from pcn.errors import ConfigError
from pcn.layers import unwrap
from pcn.nn.eights import as_they_are
from pcn.running.example import AsModule, Example, Forward


@dataclass(frozen=True)
class Cost:
    """How many numbers a model trains, and how many it stores."""

    trainable: int
    total: int


def count(model: nn.Module) -> Cost:
    """Count a model's numbers as the paper does.

    Trainable are the parameters that take gradients. The total adds frozen parameters and every stored floating-point
    buffer: batch norm's running mean and variance, and the basis and mean of each principal component layer, also
    where two layers read the same input. Batch norm's counter of batches is not counted.

    >>> count(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    Cost(trainable=12, total=16)
    """
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return Cost(trainable, sum(tensor.numel() for _, tensor in stored(model)))


def stored(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what counts as stored, by name: parameters, and floating-point buffers that are saved with them."""
    yield from model.named_parameters()
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            saved = buffer is not None and name not in module._non_persistent_buffers_set
            if saved and buffer.is_floating_point():
                yield f"{prefix}.{name}".lstrip("."), buffer


def flops_per_sample(model: nn.Module, batch: Any, *, forward: Forward | None = None) -> float:
    """Count the floating-point operations of one forward pass, a multiply-add being two, per sample of the batch.

    Matrix products and convolutions are counted, as ``torch.utils.flop_counter`` does, also those inside attention and
    recurrent layers, on every device alike. Those of parameters and buffers alone are not: they happen once, however
    many samples there are. Nor is anything else, elementwise functions, norms or ``nn.Bilinear``. The batch reaches the
    model by the rules of :func:`pcn.analyze`. Nothing is computed: the model may be on the meta device.

    >>> flops_per_sample(nn.Linear(3, 2), torch.ones(5, 3))
    12.0
    """
    example = Example.of(batch, forward)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    call = AsModule(unwrap(model), example)
    # Fake copies of parameters and buffers take what the pass writes, batch norm's counter for one.
    held = dict(_held(call))
    fakes = {id(tensor): mode.from_tensor(tensor.detach()) for tensor in held.values()}
    state: dict[str, Tensor] = {name: fakes[id(tensor)] for name, tensor in held.items()}
    inputs = tree_map_only(Tensor, mode.from_tensor, example.inputs)
    counter = FlopCounterMode(display=False, custom_mapping={GROUPED: grouped_flops})
    with ExitStack() as stack:
        for context in (torch.no_grad(), _in_pieces(), as_they_are(), mode, GroupedSizes(), counter):
            stack.enter_context(context)
        once = stack.enter_context(Constants(state.values(), counter))
        functional_call(call, state, (inputs,), tie_weights=False)
    return float(counter.get_total_flops() - once.flops) / _samples(example.inputs)


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers of every module once, tied ones for each module that has them.

    Under a module's second name torch.func would find what it has put there under the first, and leave that behind.
    """
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{prefix}.{name}".lstrip("."), tensor


@contextmanager
def _in_pieces() -> Iterator[None]:
    """Have attention and recurrent layers call the products that they are made of: a kernel for all is not counted."""
    libraries, fast = (torch.backends.cudnn, torch.backends.mkldnn), torch.backends.mha.get_fastpath_enabled()
    before = [library.enabled for library in libraries]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for library in libraries:
            setattr(library, "enabled", False)  # noqa: B010  (typed as a constant)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for library, enabled in zip(libraries, before, strict=True):
            setattr(library, "enabled", enabled)  # noqa: B010


def _samples(inputs: Any) -> int:
    samples = Example(inputs).samples
    if not samples:
        raise ConfigError("the batch holds no tensor with samples in it, so there is nothing to count per sample")
    return samples
