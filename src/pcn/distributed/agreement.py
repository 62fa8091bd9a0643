"""Whether all processes hold the same: parameters, buffers and optimizer state, compared by hash."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Set
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pcn.collectives import Ranks
from pcn.errors import PlanError
from pcn.layers import unwrap
from pcn.running.optimizers import Optimizers, as_optimizers


def state_hash(model: nn.Module, optimizer: Optimizers = None) -> str:
    """One SHA-256 over the names and bytes of all parameters, buffers and optimizer state.

    >>> model = nn.Linear(2, 2)
    >>> before = state_hash(model)
    >>> nn.init.zeros_(model.weight).sum().item(), state_hash(model) == before
    (0.0, False)
    """
    return _combined(digests(model, optimizer))


def digests(model: nn.Module, optimizer: Optimizers = None) -> dict[str, str]:
    """A SHA-256 of everything that a model and its optimizers hold, by name."""
    model = unwrap(model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {_parameter(name): _digest(parameter) for parameter, name in names.items()}
    found |= {f"buffer {name!r}": _digest(buffer) for name, buffer in model.named_buffers()}
    for number, each in enumerate(as_optimizers(optimizer)):
        called = f"optimizer {number + 1}'s state" if number else "optimizer state"
        for parameter, name in _held(each, names):
            for entry, value in each.state.get(parameter, {}).items():
                found[f"{called} {entry!r} of {name!r}"] = _digest(value)
    return found


def differing(ranks: Ranks, mine: dict[str, str]) -> set[str]:
    """The names of all that is not the same on every rank."""
    whole = _combined(mine)
    if all(other == whole for other in ranks.gather(whole)):
        return set()
    everyones = ranks.gather(mine)
    return {name for one in everyones for name in one if any(other.get(name) != one[name] for other in everyones)}


def check_parameters_agree(different: Set[str], own: Set[str] = frozenset()) -> None:
    """Raise when ranks hold different parameters; ``own`` names those that each rank may have for itself."""
    wrong = sorted(name for name in different if name.startswith("parameter"))
    wrong = [name for name in wrong if name not in {_parameter(name) for name in own}]
    if wrong:
        raise PlanError(
            f"the ranks hold different values of {wrong[0]}{_and_more(wrong)}, so that one plan cannot serve them all: "
            "wrap the model in DistributedDataParallel, or load the same weights on every rank, before training"
        )


def check_agreement(different: Set[str], before: Set[str]) -> None:
    """Raise when ranks disagree after the switch about anything on which they agreed before it."""
    wrong = sorted(different - before)
    if wrong:
        raise PlanError(
            f"after the switch the ranks hold different values of {wrong[0]}{_and_more(wrong)}: "
            "stop here and start again from the last checkpoint"
        )


def _parameter(name: str) -> str:
    return f"parameter {name!r}"


def _and_more(names: list[str]) -> str:
    return f" (and of {len(names) - 1} more)" if len(names) > 1 else ""


def _held(optimizer: Optimizer, names: dict[Any, str]) -> Iterator[tuple[Tensor, str]]:
    for number, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            yield parameter, names.get(parameter, f"group {number}, parameter {position}")


def _combined(found: dict[str, str]) -> str:
    return hashlib.sha256("\n".join(f"{name} {digest}" for name, digest in sorted(found.items())).encode()).hexdigest()


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        return hashlib.sha256(repr(value).encode()).hexdigest()
    flat = value.detach().cpu().contiguous().view(-1)
    digest = hashlib.sha256(f"{value.dtype} {list(value.shape)} ".encode())
    if flat.numel():
        digest.update((ctypes.c_char * (flat.numel() * flat.element_size())).from_address(flat.data_ptr()))
    return digest.hexdigest()
