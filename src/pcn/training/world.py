"""The processes that train together, as ``torchrun`` starts them; alone by default."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from pcn.collectives import Ranks
from pcn.errors import ConfigError
from pcn.training.data import Share


class World:
    """This process among the others."""

    def __init__(self, device: torch.device, group: distributed.ProcessGroup | None = None) -> None:
        self.device, self.ranks = device, Ranks(group)
        self.rank, self.size = self.ranks.rank, self.ranks.size
        self.share = Share(self.rank, self.size)

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """What the run trains on, in words."""
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "the CPU"
        return kind if self.size == 1 else f"{kind}, {self.size} processes"

    def wrap(self, model: nn.Module) -> nn.Module:
        """Have gradients averaged over the processes."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def sum(self, value: Tensor) -> Tensor:
        """A tensor's sum over the processes, in its place."""
        self.ranks.sum_(value)
        return value


def device_named(name: str | None) -> torch.device:
    """A device that is here, by default the GPU where there is one; a broken one is no reason for the CPU."""
    name = name or ("cuda" if _has_gpu() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"there is no device {name!r}: give cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch finds no CUDA device here: give --device cpu, or install a torch with CUDA")
    return device


def _has_gpu() -> bool:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = torch.cuda.is_available()
    if told and not found:
        raise ConfigError(f"CUDA does not start: {told[0].message}; repair that, or ask for the CPU (--device cpu)")
    return found


@contextmanager
def world(device: str | None = None) -> Iterator[World]:
    """Join the processes that ``torchrun`` started, or be alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    name = str(device_named(device))
    if name == "cuda":
        torch.backends.cudnn.benchmark = True
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(name)
    if size == 1:
        yield World(torch.device(name))
        return
    distributed.init_process_group("nccl" if name.startswith("cuda") else "gloo")
    try:
        yield World(torch.device(name), distributed.group.WORLD)
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def leave(code: int) -> NoReturn:
    """End the process; where it is one of several, without the interpreter's own clean-up.

    A DistributedDataParallel leaves its group's threads behind even when the group was destroyed, and one that is
    still busy while the interpreter ends aborts the process after all its work was done.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
