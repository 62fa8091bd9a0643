"""Models and optimizers that are spread over processes in a way that surgery cannot follow: said before it begins."""

from __future__ import annotations

from torch import nn

from pcn.errors import PlanError
from pcn.layers import unwrap, wrapper_of
from pcn.running.optimizers import Optimizers, as_optimizers


def check_changeable(model: nn.Module, optimizer: Optimizers = None) -> None:
    """Raise for a model that only :class:`pcn.Switch` can change, or that nothing here can."""
    check_whole(model, optimizer)
    if wrapper_of(model) is not None:
        raise PlanError(
            "the model is in DistributedDataParallel, which would go on with the old parameters: use "
            "pcn.Switch(model, optimizer, ...), whose now(batches) switches at once, or change the plain model first"
        )


def check_whole(model: nn.Module, optimizer: Optimizers = None) -> None:
    """Raise unless every process has all of the model's parameters and of the optimizers' state."""
    model = unwrap(model)
    for module in model.modules():
        if _is_a(module, "FSDPModule"):
            raise PlanError(
                "the model is sharded by fully_shard: bring it together with pcn.distributed.gather_, switch the plain "
                "model and shard it again with pcn.distributed.shard_ (docs/distributed.md has the lines)"
            )
        if _is_a(module, "FullyShardedDataParallel"):
            raise PlanError(
                "the model is in FullyShardedDataParallel, whose flat parameters cannot be followed: switch the plain "
                "model before it is wrapped, or use fully_shard with pcn.distributed.gather_ and shard_"
            )
    for name, parameter in model.named_parameters():
        if _is_a(parameter, "DTensor"):
            raise PlanError(
                f"{name!r} is a DTensor, of which every process has a part: bring the model together with "
                "pcn.distributed.gather_, switch the plain model and distribute it again with pcn.distributed.shard_"
            )
    if any(_is_a(each, "ZeroRedundancyOptimizer") for each in as_optimizers(optimizer)):
        raise PlanError(
            "ZeroRedundancyOptimizer keeps every parameter's state on one process only: give the switch a plain "
            "optimizer, or None and make a new ZeroRedundancyOptimizer afterwards, whose state starts afresh"
        )


def _is_a(value: object, name: str) -> bool:
    # By name: importing these takes longer than most switches.
    return any(base.__name__ == name for base in type(value).__mro__)
