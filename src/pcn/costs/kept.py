"""What autograd keeps for the backward pass, storage by storage, and which layer asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pcn.layers import layout_of

Key = int  # a storage, by its address; it is held until all is counted


def key_of(tensor: Tensor) -> Key:
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True)
class Read:
    """What a layer reads in one call: everything but the numbers."""

    key: Key
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    layout: torch.memory_format
    requires_grad: bool

    @classmethod
    def of(cls, x: Tensor) -> Read:
        return cls(key_of(x), tuple(x.shape), x.dtype, x.device, layout_of(x), x.requires_grad)

    def like(self) -> Tensor:
        """Random numbers in their place."""
        x = torch.empty(self.shape, dtype=self.dtype, device=self.device, memory_format=self.layout)
        return x.normal_().requires_grad_(self.requires_grad)


@dataclass
class Kept:
    """The storages kept in one pass forward, each counted once, without those of the model's own tensors."""

    own: set[Key]
    sizes: dict[Key, int] = field(default_factory=dict)
    layers: dict[Key, set[str | None]] = field(default_factory=dict)  # who keeps it; None: something else than a layer
    reads: dict[str, list[Read]] = field(default_factory=dict)  # of each layer, call by call
    keeping: dict[str, list[bool]] = field(default_factory=dict)  # whether a call kept anything, were it a weight
    held: list[Tensor] = field(default_factory=list)  # while they are, no other storage can have their address
    running: str | None = None

    @classmethod
    def beside(cls, tensors: Iterable[Tensor]) -> Kept:
        return cls({key_of(tensor) for tensor in tensors})

    @contextmanager
    def watched(self) -> Iterator[None]:
        with saved_tensors_hooks(self._pack, lambda held: held):
            yield

    def _pack(self, tensor: Tensor) -> Tensor:
        if self.running is not None:
            self.keeping[self.running][-1] = True
        if tensor.layout is torch.strided and (key := key_of(tensor)) not in self.own:
            self.sizes[key] = tensor.untyped_storage().nbytes()
            self.layers.setdefault(key, set()).add(self.running)
            self.held.append(tensor.detach())
        return tensor.detach()  # a tensor that held itself through its own graph would never be freed

    @contextmanager
    def layers_named(self, layers: Mapping[str, nn.Module]) -> Iterator[None]:
        """Note which layer runs, and what it reads."""
        handles = []
        for name, layer in layers.items():

            def enter(_: nn.Module, arguments: Any, keywords: Any, name: str = name) -> None:
                x = next(iter((*arguments, *keywords.values())))
                self.running = name
                self.held.append(x.detach())
                self.reads.setdefault(name, []).append(Read.of(x))
                self.keeping.setdefault(name, []).append(False)

            def leave(*_: Any) -> None:
                self.running = None

            handles.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(layer.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes.values())

    def only_for(self, layer: str) -> dict[Key, int]:
        """The storages that nobody else keeps."""
        return {key: size for key, size in self.sizes.items() if self.layers[key] == {layer}}
