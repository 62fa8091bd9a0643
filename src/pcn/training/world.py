"""The processes that train together, as ``torchrun`` starts them; alone by default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from pcn.training.data import Share


class World:
    """This process among the others."""

    def __init__(self, device: torch.device, rank: int = 0, size: int = 1) -> None:
        self.device, self.rank, self.size = device, rank, size
        self.share = Share(rank, size)

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
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def gather(self, value: Any) -> list[Any]:
        """What every process has, in order."""
        values = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value)
        return values

    def from_first(self, value: Any) -> Any:
        """What the first process has, on all of them."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values, device=self.device if self.device.type == "cuda" else None)
        return values[0]


@contextmanager
def world(device: str | None = None) -> Iterator[World]:
    """Join the processes that ``torchrun`` started, or be alone."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda":
        torch.backends.cudnn.benchmark = True
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(name)
    if size == 1:
        yield World(torch.device(name))
        return
    distributed.init_process_group("nccl" if name.startswith("cuda") else "gloo")
    try:
        yield World(torch.device(name), rank, size)
    finally:
        distributed.destroy_process_group()
