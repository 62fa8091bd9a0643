"""Looking at the inputs of layers while a model runs, each activation once."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pcn.errors import StatisticsError
from pcn.layers import LayerType, groups_of, in_width, layer_type
from pcn.statistics import forms
from pcn.statistics.blocks import as_block, pooled
from pcn.statistics.forms import SketchOptions
from pcn.statistics.moments import Moments


@dataclass(frozen=True)
class Sampling:
    """Which part of an activation is measured."""

    pool: int | None = None
    fraction: float | None = None
    seed: int = 0


class Collector:
    """The moments of every activation that the given layers read.

    In the first batch that calls a layer, its input is measured on its own. Layers that turn out to have read the same
    tensors, call by call, share one set of moments from then on, under the name of the first of them.
    """

    def __init__(self, layers: dict[str, nn.Module], sampling: Sampling, options: SketchOptions) -> None:
        self.key_of: dict[str, str] = {}
        self.moments: dict[str, Moments] = {}
        self._layers, self._sampling, self._options = layers, sampling, options
        self._generators = {name: _generator(sampling.seed, name) for name in layers}
        self._forget_batch()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have hooks on the layers."""
        handles = []
        try:
            for name, module in self._layers.items():
                handles.append(module.register_forward_pre_hook(self._hook(name, module), with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def end_batch(self) -> None:
        """Settle who shares with whom for layers seen for the first time, and check the others."""
        keys: dict[tuple[int, ...], str] = {}
        for name, tokens in self._tokens.items():
            if name not in self.key_of:
                key = keys.setdefault(tuple(tokens), name)
                self.key_of[name] = key
                if key != name:
                    del self.moments[name]
        for name, key in self.key_of.items():
            if self._tokens.get(name) != self._tokens.get(key):
                raise StatisticsError(
                    f"{name!r} and {key!r} read the same activation in one batch and different ones in another; "
                    f"analyze them apart, with exclude=[{name!r}] and exclude=[{key!r}]"
                )
        self._forget_batch()

    def _forget_batch(self) -> None:
        self._tokens: dict[str, list[int]] = {}
        self._seen: dict[int, list[_Seen]] = {}
        self._calls = 0
