"""Where tensors lie in memory: what is one tensor under two names, or a view of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Owner = TypeVar("Owner")
Span = tuple[int, int, int]  # the piece of memory, the first byte in it and the one behind the last


def span(tensor: Tensor) -> Span:
    """Where a tensor lies, strided as it may be.

    >>> whole = torch.ones(4)
    >>> [span(part)[1:] for part in (whole, whole[2:], whole[::3])]
    [(0, 16), (8, 16), (0, 16)]
    """
    with torch._C.DisableTorchFunction():
        if tensor.is_nested:  # whose sizes are no numbers
            return id(tensor), 0, 1
        try:
            piece, first = int(tensor.untyped_storage()._cdata), int(tensor.storage_offset())
            reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        except (NotImplementedError, RuntimeError, ValueError):  # of tensors that lie nowhere: sparse ones, lazy ones
            return id(tensor), 0, 1
        last = first + int(reach) + 1 if tensor.numel() else first
        return piece, first * tensor.itemsize, last * tensor.itemsize


def tensors_by_name(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers under all their names."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


class Places(Generic[Owner]):
    """Some tensors, and whose each is; tensors that lie over one another are one for whoever asks.

    Many may lie side by side in one piece of memory, as ``vector_to_parameters`` leaves them.

    >>> vector = torch.ones(6)
    >>> places = Places([(vector[:4], "a"), (vector[4:], "b")])
    >>> places.over(vector[3:4]), places.over(vector), places.over(vector.clone())
    (['a'], ['a', 'b'], [])
    """

    def __init__(self, owned: Iterable[tuple[Tensor, Owner]]) -> None:
        self._in: dict[int, list[tuple[int, int, Owner]]] = {}
        for tensor, owner in owned:
            piece, start, stop = span(tensor)
            self._in.setdefault(piece, []).append((start, stop, owner))

    def over(self, tensor: Tensor) -> list[Owner]:
        """The owners of what a tensor lies over, in order."""
        piece, start, stop = span(tensor)
        return [owner for first, last, owner in self._in.get(piece, ()) if first < stop and start < last]
