"""What a model computes from its parameters and buffers alone, and so once for however many samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten
# What these put out may hold a row for every sample, though they read none.
SIZED = {aten.expand, aten.repeat, aten.new_empty, aten.new_full, aten.new_ones, aten.new_zeros}


class Constants(TorchDispatchMode):
    """Follows tensors that depend on no sample through a forward pass, and adds up what a counter counts for them."""

    supports_higher_order_operators = True

    def __init__(self, constants: Iterable[Tensor], counter: FlopCounterMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counter = counter
        self._known: dict[int, Tensor] = {}  # by id: they are held, so that none gets another's
        self._storages: set[int] = set()  # of those into which no sample was written
        self._add(constants)
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = self._counter.get_total_flops()
        out = func(*args, **kwargs or {})
        read = _tensors((args, kwargs))
        if read and all(id(tensor) in self._known and _storage(tensor) in self._storages for tensor in read):
            self.flops += self._counter.get_total_flops() - before
            if getattr(func, "overloadpacket", None) not in SIZED:
                self._add(_tensors(out))
        elif getattr(getattr(func, "_schema", None), "is_mutable", False):
            self._storages -= {_storage(tensor) for tensor in _tensors(out)}
        return out

    def _add(self, constants: Iterable[Tensor]) -> None:
        for tensor in constants:
            self._known[id(tensor)] = tensor
            self._storages.add(_storage(tensor))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
