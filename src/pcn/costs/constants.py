"""What a model computes from its parameters and buffers alone, and so once for however many samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from pcn.graph.independent import is_independent

aten = torch.ops.aten


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
        read = [self._holds(tensor) for tensor in _tensors((args, kwargs))]
        if all(read):
            self.flops += self._counter.get_total_flops() - before
        if is_independent(func, read) or self._looks_up(func, args):
            self._add(_tensors(out))
        elif not all(read) and getattr(getattr(func, "_schema", None), "is_mutable", False):
            self._storages -= {_storage(tensor) for tensor in _tensors(out)}
        return out

    def _looks_up(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether constants are looked up in one, by numbers that were spread over its other dimensions, no samples."""
        if getattr(func, "overloadpacket", None) is not aten.gather:
            return False
        source, dim, index = args[:3]
        return self._holds(source) and _storage(index) in self._storages and index.stride(dim) != 0

    def _holds(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known and _storage(tensor) in self._storages

    def _add(self, constants: Iterable[Tensor]) -> None:
        for tensor in constants:
            self._known[id(tensor)] = tensor
            self._storages.add(_storage(tensor))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
