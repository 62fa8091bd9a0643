"""Looking at the inputs of layers while a model runs, each activation once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pcn.errors import StatisticsError
from pcn.layers import LayerType, canonical_weight, groups_of, in_width, layer_type
from pcn.running.inputs import over_samples
from pcn.running.seeded import generator
from pcn.statistics import forms
from pcn.statistics.blocks import as_block, pooled
from pcn.statistics.forms import SketchOptions
from pcn.statistics.moments import Moments
from pcn.statistics.sketch import Sketch


@dataclass(frozen=True)
class Sampling:
    """Which part of an activation is measured."""

    pool: int | None = None
    fraction: float | None = None
    seed: int = 0


class Collector:
    """The moments of every activation that the given layers read.

    In the first batch that calls a layer, its input is measured on its own. Layers that turn out to have read the same
    tensors, call by call, share one set of moments from then on, under the name of the first of them. Gradients belong
    to a layer alone: what the others make of the same activation is not in them.
    """

    def __init__(self, layers: dict[str, nn.Module], sampling: Sampling, options: SketchOptions) -> None:
        self.key_of: dict[str, str] = {}
        self.moments: dict[str, Moments] = {}
        self.gradients: dict[str, Moments] = {}
        self.options = options
        self._layers, self._sampling = layers, sampling
        self._generators = {name: generator(f"{sampling.seed}:{name}") for name in layers}
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

    @property
    def differentiable(self) -> list[str]:
        """The layers that are narrow enough for the moments of gradients."""
        layers = self._layers.items()
        return [name for name, module in layers if in_width(module) // groups_of(module) <= forms.WIDEST_BASIS]

    def take_gradient(self, name: str, gradient: Tensor) -> None:
        """Take in the gradient of the loss by what a layer has read."""
        module = self._layers[name]
        kind = layer_type(module)
        assert kind is not None
        if gradient.numel():
            self._add(self.gradients, name, as_block(gradient, kind, groups_of(module)))

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

    def check_finite(self) -> None:
        """Raise when a layer was given numbers that are not finite; all layers are asked at once."""
        _check_finite(self.moments, "the inputs of", "check the model's weights and the batches")
        _check_finite(self.gradients, "the gradients of the loss by the inputs of", "check the loss and the batches")

    def device_of(self, name: str) -> torch.device:
        """Where the moments of what a layer reads belong."""
        return canonical_weight(self._layers[name]).device

    def refining(self, keys: Iterable[str]) -> Collector:
        """A collector for another pass, in which the sketches of these activations are refined."""
        refined = Collector({key: self._layers[key] for key in keys}, self._sampling, self.options)
        for key in refined._layers:
            moments = self.moments[key]
            assert isinstance(moments, Sketch)
            refined.key_of[key], refined.moments[key] = key, moments.refined()
        return refined

    def _forget_batch(self) -> None:
        self._tokens: dict[str, list[int]] = {}
        self._seen: dict[int, list[_Seen]] = {}
        self._activations = 0

    def _hook(self, name: str, module: nn.Module) -> Callable[..., None]:
        kind, groups, width = layer_type(module), groups_of(module), in_width(module)
        assert kind is not None

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else next(iter(kwargs.values()), None)
            x = over_samples(x) if isinstance(x, Tensor) else None
            if not isinstance(x, Tensor) or x.dim() <= kind.spatial or x.shape[kind.channel_dim] != width:
                return  # the layer itself will say what is wrong
            if x.numel():
                dense = x.detach() if x.layout == torch.strided else x.detach().to_dense()
                self._take(name, dense, self._token(x, (kind.channel_dim, groups)), kind, groups)

        return hook

    def _take(self, name: str, x: Tensor, token: int, kind: LayerType, groups: int) -> None:
        self._tokens.setdefault(name, []).append(token)
        if self.key_of.get(name, name) != name:
            return
        block = as_block(pooled(self._subset(name, x, kind), kind, self._sampling.pool), kind, groups)
        self._add(self.moments, name, block)

    def _add(self, moments: dict[str, Moments], name: str, block: Tensor) -> None:
        known = moments.get(name)
        moments[name] = forms.begin(block, self.options) if known is None else forms.add(known, block, self.options)

    def _subset(self, name: str, x: Tensor, kind: LayerType) -> Tensor:
        if self._sampling.fraction is None or x.dim() == kind.spatial + 1:  # one sample by itself
            return x
        count = max(1, round(self._sampling.fraction * len(x)))
        chosen = torch.randperm(len(x), generator=self._generators[name], device="cpu")[:count].sort().values
        return x.index_select(0, chosen.to(x.device))

    def _token(self, x: Tensor, form: tuple[int, int]) -> int:
        """A number for this tensor as it stands now: the same one only if nothing wrote to it in between."""
        version = None if x.is_inference() else x._version
        same_place = self._seen.setdefault(id(x), [])
        for seen in same_place:
            if seen.tensor() is x and seen.form == form and seen.version == version is not None:
                return seen.token
        self._activations += 1
        # Weak, so that activations are freed as they would be without us.
        same_place.append(_Seen(weakref.ref(x), version, form, self._activations))
        return self._activations


def _check_finite(moments: dict[str, Moments], what: str, do: str) -> None:
    flags = [each.finite() for each in moments.values()]
    finite = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist() if flags else []
    bad = [name for name, good in zip(moments, finite, strict=True) if not good]
    if bad:
        others = f" (and those of {len(bad) - 1} more layers)" if len(bad) > 1 else ""
        raise StatisticsError(f"{what} {bad[0]!r}{others} hold NaN, infinite or too large values; {do}")


@dataclass(frozen=True)
class _Seen:
    tensor: weakref.ref[Tensor]
    version: int | None
    form: tuple[int, int]
    token: int
