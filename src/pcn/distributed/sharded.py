"""Models whose parameters are spread over processes: brought together for the switch, then spread again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pcn.errors import PlanError
from pcn.rewriting.groups import held_by
from pcn.running.optimizers import Optimizers, as_optimizers

Named = dict[str, nn.Parameter]


@torch.no_grad()
def gather_(sharded: nn.Module, plain: nn.Module, optimizer: Optimizers = None) -> None:
    """Copy a sharded model's weights, gradients and buffers, whole, into a plain model that was built alike.

    Every rank has all of them then. The optimizer (or a list of them) changes over to the plain model's parameters
    with its state, whole as well.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in sharded.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # a forward pass may have left whole parameters in place
    old, new = dict(sharded.named_parameters()), dict(plain.named_parameters())
    buffers, plain_buffers = dict(sharded.named_buffers()), dict(plain.named_buffers())
    if odd := sorted((old.keys() ^ new.keys()) | (buffers.keys() ^ plain_buffers.keys())):
        raise PlanError(f"{odd[0]!r} is in one of the two models only: build the plain model as the sharded one was")
    for name, tensor in (*new.items(), *plain_buffers.items()):
        tensor.copy_(_whole({**old, **buffers}[name]))
    for name, parameter in new.items():
        gathered = old[name].grad  # in a step whose gradients are being accumulated
        parameter.grad = None if gathered is None else _whole(gathered).to(parameter)
    _change_over_(as_optimizers(optimizer), old, new, lambda value, parameter: _whole(value).to(parameter.device))


@torch.no_grad()
def shard_(model: nn.Module, optimizer: Optimizers, shard: Callable[[nn.Module], object]) -> None:
    """Have ``shard`` spread a model in place, with calls of ``fully_shard``; gradients and optimizer's state alike."""
    old = dict(model.named_parameters())
    gathered = {name: parameter.grad for name, parameter in old.items()}
    shard(model)
    new = dict(model.named_parameters())
    for name, gradient in gathered.items():
        new[name].grad = None if gradient is None else _spread(gradient, new[name])
    _change_over_(as_optimizers(optimizer), old, new, _spread)


def _whole(value: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def _spread(value: Tensor, parameter: nn.Parameter) -> Tensor:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _change_over_(
    optimizers: Sequence[Optimizer], old: Named, new: Named, change: Callable[[Tensor, nn.Parameter], Tensor]
) -> None:
    """Put new parameters into the optimizers' groups, their state changed as they were."""
    successors = {id(parameter): new[name] for name, parameter in old.items()}
    if held_by(optimizers) - successors.keys():
        raise PlanError("the optimizer holds a parameter that is not the model's; give the one that trains this model")
    for optimizer in optimizers:
        state: dict[Tensor, dict[str, Any]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in optimizer.state:
                    successor = successors[id(parameter)]
                    state[successor] = {
                        entry: change(value, successor) if _has_shape_of(parameter, value) else value
                        for entry, value in optimizer.state.pop(parameter).items()
                    }
            group["params"][:] = [successors[id(parameter)] for parameter in group["params"]]
        optimizer.state.update(state)


def _has_shape_of(parameter: Tensor, value: Any) -> bool:
    """Tell what is held per entry from what is held once, such as a step count."""
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == parameter.shape
