"""The processes of a group as one: what one knows all can know, and none waits for another that has failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pcn.errors import ConfigError, PCNError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """An error as it travels to other ranks."""

    kind: type[PCNError]
    message: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if isinstance(error, PCNError) and type(error).__module__ == PCNError.__module__:
            return cls(type(error), str(error))
        return cls(PCNError, f"{type(error).__name__}: {error}")

    def on(self, rank: int) -> PCNError:
        return self.kind(f"on rank {rank}: {self.message}")


class Ranks:
    """The processes of a group, or this one alone for ``None``: every rank calls the same methods in the same order.

    >>> Ranks(None).together(lambda: 3), Ranks(None).gather("a")
    (3, ['a'])
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        if self.rank < 0:
            raise ConfigError("this process is not in the group that was given: call this on the group's ranks only")

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def report(self, error: Exception | None) -> None:
        """Tell all ranks whether this one has failed; raise if another one has, and this one has not."""
        failures = self.gather(None if error is None else Failure.of(error))
        for rank, failure in enumerate(failures):
            if error is None and failure is not None:
                raise failure.on(rank)

    def together(self, work: Callable[[], T]) -> T:
        """Do something on every rank, without talking to the others meanwhile: where one fails, all raise."""
        try:
            result = work()
        except Exception as error:
            self.report(error)
            raise
        self.report(None)
        return result

    def from_one(self, make: Callable[[], T], source: int = 0) -> T:
        """Have one rank make something; all get it, or all raise."""
        if self.size == 1:
            return make()
        told: list[Any] = [None, None]
        error: Exception | None = None
        if self.rank == source:
            try:
                told[0] = make()
            except Exception as caught:
                error = caught
                told[1] = Failure.of(caught)
        dist.broadcast_object_list(told, group=self.group, group_src=source)
        if error is not None:
            raise error
        if told[1] is not None:
            raise told[1].on(source)
        return told[0]  # type: ignore[no-any-return]

    def broadcast_(self, tensor: Tensor, source: int = 0) -> None:
        """Fill a tensor with another rank's, bit by bit."""
        if self.size > 1 and tensor.numel():
            moved = self._movable(tensor)
            # Backends know few types, but all know bytes.
            dist.broadcast(moved.view(-1).view(torch.uint8), group=self.group, group_src=source)
            _put_back_(tensor, moved)

    def sum_(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks."""
        if self.size > 1 and tensor.numel():
            moved = self._movable(tensor)
            dist.all_reduce(moved, group=self.group)
            _put_back_(tensor, moved)

    def _movable(self, tensor: Tensor) -> Tensor:
        """The tensor itself, or a copy that the group's backend can send."""
        backends = dist.get_backend_config(self.group).split(",")  # such as cpu:gloo,cuda:nccl
        devices = [backend.partition(":")[0] for backend in backends]
        device = tensor.device if tensor.device.type in devices else torch.device(devices[0])
        return tensor.detach().to(device).contiguous()


def _put_back_(tensor: Tensor, moved: Tensor) -> None:
    if moved.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(moved)
