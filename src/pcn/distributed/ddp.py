"""DistributedDataParallel around a model whose parameters have changed: the same object, set up anew."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pcn.collectives import Ranks
from pcn.errors import PlanError
from pcn.nn import PCModule

# What the user or a running loop has set on the wrapper; its own constructor would reset it.
KEPT = {*nn.Module().__dict__, "_join_config", "_ddp_sink_clone", "require_backward_grad_sync"}


def check_rewrappable(ddp: DistributedDataParallel) -> None:
    """Raise when a wrapper is set up in a way that cannot be repeated around other parameters."""
    reason = _obstacle(ddp)
    if reason is not None:
        raise PlanError(
            f"DistributedDataParallel cannot follow the switch: {reason}; switch its plain module, with "
            "pcn.Switch(model.module, optimizer, ..., group=model.process_group), and wrap that again afterwards"
        )


def _obstacle(ddp: DistributedDataParallel) -> str | None:
    if ddp.mixed_precision is not None:
        return "its mixed_precision puts hooks on every parameter (use torch.autocast in its place)"
    if ddp._delay_all_reduce_params:
        return "some of its gradients are reduced later (delay_all_reduce_named_params)"
    if ddp._use_python_reducer:
        return "it reduces gradients by torch._dynamo's python_reducer"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.module.parameters()):
        return "its optimizers run in the backward pass"
    hook = ddp._get_ddp_logging_data().get("comm_hook")
    if hook and not ddp._comm_hooks:
        return f"its communication hook {hook} cannot be read back (use register_comm_hook)"
    for _, state in ddp._comm_hooks:
        if state is not None and not isinstance(state, dist.ProcessGroup):
            return f"its communication hook {hook} has a state for the old gradients, a {type(state).__name__}"
    return None


def rewrap_(ddp: DistributedDataParallel) -> None:
    """Set a wrapper up anew around its changed module, with its own arguments; hooks on it stay.

    The frozen bases are left out of what it sends in every step. Nothing is sent now: the ranks agree already.
    """
    hooks, before = ddp._comm_hooks, dict(ddp.__dict__)
    ddp._remove_autograd_hooks()
    ignored = sorted(set(ddp.parameters_to_ignore) | frozen_names(ddp.module))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(ddp.module, ignored)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says again what it said about the same arguments the first time
        DistributedDataParallel.__init__(ddp, ddp.module, **_arguments(ddp))
    ddp.__dict__.update({name: before[name] for name in KEPT if name in before})
    for hook, state in hooks:
        ddp.register_comm_hook(state, hook)


def ignore_bases_(ddp: DistributedDataParallel) -> None:
    """Leave the frozen bases of a model that was switched before it was wrapped out of what is sent in every step."""
    ddp.parameters_to_ignore = set(ddp.parameters_to_ignore) | frozen_names(ddp.module)


def frozen_names(module: nn.Module) -> set[str]:
    """The names of the bases, means and offsets that are never trained."""
    return {
        f"{owner}.{name}".lstrip(".")
        for owner, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, PCModule)
        for name, _ in part.named_buffers(recurse=False)
    }


def sync_buffers_(ddp: DistributedDataParallel, ranks: Ranks) -> None:
    """Give all ranks the first one's buffers, as the wrapper itself does before its next forward pass."""
    if ddp.broadcast_buffers and not hasattr(ddp, "buffer_hook"):
        for name, buffer in ddp.module.named_buffers():
            if name not in ddp.parameters_to_ignore:
                ranks.broadcast_(buffer)


def _arguments(ddp: DistributedDataParallel) -> dict[str, Any]:
    """The arguments that a wrapper was made with, which it keeps under their own names."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    kept = {name: value for name, value in ddp.__dict__.items() if name in known and name != "device_mesh"}
    if ddp.bucket_bytes_cap_list:
        kept["bucket_cap_mb_list"] = [size / 2**20 for size in ddp.bucket_bytes_cap_list]
    elif not ddp.bucket_bytes_cap_default:
        kept["bucket_cap_mb"] = ddp.bucket_bytes_cap / 2**20
    return {**kept, "init_sync": False}
