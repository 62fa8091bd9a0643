"""How a batch reaches a model: one set of rules for measuring, tracing and checking."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import Dataset, IterableDataset

from pcn.errors import ConfigError
from pcn.layers import unwrap
from pcn.running.trees import as_containers, fresh_copy, tensors_in
from pcn.warn import warn

Forward = Callable[[nn.Module, Any], Any]
Batches = Iterable[Any] | Callable[[], Iterable[Any]]


def opened(batches: Batches) -> Iterable[Any]:
    """Batches to go over, also where a function was given that opens them."""
    return checked_batches(batches() if callable(batches) else batches)


def checked_batches(batches: Iterable[Any]) -> Iterable[Any]:
    """Return what can be gone over batch by batch; one batch by itself cannot, nor can single samples, nor None."""
    if isinstance(batches, Tensor | Mapping):
        raise ConfigError(f"batches is one {type(batches).__name__}; give an iterable of batches, such as [batch]")
    if isinstance(batches, Dataset) and not isinstance(batches, IterableDataset):
        raise ConfigError(
            f"batches is a {type(batches).__name__}, which holds samples, not batches: give a data loader, "
            "DataLoader(dataset, batch_size=64), or DataLoader(dataset, batch_size=None) if its items are batches"
        )
    if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
        raise ConfigError(
            f"batches is of type {type(batches).__name__}; give an iterable of batches: a list or a data loader"
        )
    return batches


def repeatable(batches: Batches) -> Batches:
    """Batches that can be gone over more than once."""
    return list(batches) if isinstance(batches, Iterator) and not callable(batches) else batches


def first_of(batches: Batches) -> tuple[Any, Batches]:
    """The first batch that has a sample in it, or None, and batches that still hold all.

    >>> first, batches = first_of(iter([torch.ones(0, 2), torch.ones(3, 2), torch.ones(1, 2)]))
    >>> len(first), [len(batch) for batch in batches]
    (3, [0, 3, 1])
    """
    if isinstance(batches, Iterator) and not callable(batches):
        seen = []
        for batch in batches:
            seen.append(batch)
            if not _is_empty(batch):
                return batch, chain(seen, batches)
        return None, seen
    with torch.random.fork_rng(devices=[]):  # a loader draws a number when it is gone over
        return next((batch for batch in opened(batches) if not _is_empty(batch)), None), batches


@dataclass(frozen=True)
class Example:
    """One call of a model: what goes in, and the user's own forward function where one was given."""

    inputs: Any
    forward: Forward | None = None

    @classmethod
    def of(cls, batch: Any, forward: Forward | None = None, device: torch.device | None = None) -> Example:
        """Make a call from a batch as a data loader yields it.

        A tensor is passed on as it is, a mapping as keyword arguments; a tuple or list is (inputs, targets, ...), of
        which the first goes in by the same rules, a tuple there as positional arguments. Whether a model could take
        more of them than the first, :meth:`for_model` sees.

        >>> Example.of((torch.ones(2, 3), torch.zeros(2))).inputs.shape
        torch.Size([2, 3])
        """
        inputs = batch
        if forward is not None and not callable(forward):
            raise ConfigError(f"forward={forward!r}: give a function, such as lambda model, batch: model(batch[0])")
        if forward is None:
            if isinstance(batch, list | tuple):
                if not batch:
                    raise ConfigError("a batch is empty: give tensors, mappings or (inputs, targets) pairs")
                inputs = batch[0]
            if isinstance(inputs, Mapping):
                inputs = dict(inputs)
            elif isinstance(inputs, list | tuple):
                inputs = tuple(inputs)
            elif not isinstance(inputs, Tensor):
                raise ConfigError(
                    f"a batch holds {type(inputs).__name__}: give tensors, mappings, (inputs, targets) pairs, "
                    "or forward=lambda model, batch: ... to say how the model is called"
                )
        if device is not None:
            inputs = tree_map_only(Tensor, partial(_moved, device=device), inputs)
        return cls(inputs, forward)

    @classmethod
    def for_model(cls, model: nn.Module, batch: Any, forward: Forward | None = None) -> Example:
        """Make a call of this model, on its device; what of a batch is left out and could go in is warned of.

        A call that is one already stays as it is.
        """
        if isinstance(batch, Example):
            return batch
        if forward is None:
            _warn_of_more(batch, model)
        return cls.of(batch, forward, device_of(model))

    def with_inputs(self, inputs: Any) -> Example:
        return replace(self, inputs=inputs)

    @property
    def samples(self) -> int:
        """How many samples there are: the first size of the first tensor that is not empty; 0 where nothing tells."""
        return next(filter(None, _first_sizes(self.inputs)), 0)

    @property
    def is_empty(self) -> bool:
        """Whether there are tensors, and none has a sample in it."""
        return _is_empty(self.inputs)

    def with_samples(self, count: int) -> Example:
        """The same call with another number of samples, repeated where there are too few.

        Every tensor counts as samples whose first size is that of the first tensor: which ones the model takes so, only
        its code knows. Where a constant happens to have that size, give an example with another number of samples.

        >>> Example.of(torch.ones(2, 3)).with_samples(5).inputs.shape
        torch.Size([5, 3])
        """
        batch = self.samples

        def resized(tensor: Tensor) -> Tensor:
            if not batch or not tensor.ndim or tensor.shape[0] != batch:
                return tensor
            return tensor[torch.arange(count, device=tensor.device) % batch]

        found = self.with_inputs(tree_map_only(Tensor, resized, self.inputs))
        if found.samples != count:
            raise ConfigError(
                f"a batch of type {type(self.inputs).__name__} cannot be made one of {count} samples: give tensors, or "
                "mappings, lists and tuples of them, or a batch that has as many, and leave batch out"
            )
        return found

    def __str__(self) -> str:
        if self.forward is not None:
            return "forward(model, batch)"
        if isinstance(self.inputs, dict):
            given = [f"{name}={_described(value)}" for name, value in self.inputs.items()]
        else:
            given = [_described(v) for v in (self.inputs if isinstance(self.inputs, tuple) else (self.inputs,))]
        return f"model({', '.join(given)})"

    def call(self, model: nn.Module) -> Any:
        """Run the model on a copy of this example: its code may write into what it is given, or take things out."""
        return self.copied().run(model)

    def copied(self) -> Example:
        """The same call with containers and tensors of its own."""
        return self.with_inputs(fresh_copy(self.inputs))

    def run(self, model: nn.Module) -> Any:
        """Run the model on these very tensors: for those who trace or measure what it does to them."""
        inputs = fresh_copy(self.inputs, tensors=False)
        if self.forward is not None:
            return self.forward(model, inputs)
        if isinstance(inputs, dict):
            return model(**inputs)
        if isinstance(inputs, tuple):
            return model(*inputs)
        return model(inputs)


def _is_empty(batch: Any) -> bool:
    """Whether there are tensors, and none has a sample in it."""
    sizes = _first_sizes(batch)
    return bool(sizes) and not any(sizes)


def _first_sizes(batch: Any) -> list[int]:
    return [tensor.shape[0] for tensor in tensors_in(batch) if tensor.ndim]


def _warn_of_more(batch: Any, model: nn.Module) -> None:
    """Warn of three or more in a row where the model may take more of them than the first."""
    if not isinstance(batch, list | tuple) or len(batch) < 3 or not isinstance(batch[0], Tensor):
        return
    takes = _tensors_taken(model)
    if len(takes) > 1:
        warn(
            f"a batch holds {len(batch)} things, of which only the first goes in, while {type(model).__name__} "
            f"takes ({', '.join(takes[:3])}{', ...' if len(takes) > 3 else ''}): say what goes in with "
            "forward=lambda model, batch: model(batch[0], batch[1]), or model(batch[0]) for the first alone"
        )


def _tensors_taken(model: nn.Module) -> list[str]:
    """The arguments by position that may be tensors: numbers, flags and words that are given by default are none."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        arguments = inspect.signature(unwrap(model).forward).parameters.values()
    except (TypeError, ValueError):  # compiled code need not say
        return []
    return [each.name for each in arguments if each.kind in by_position and each.default in (each.empty, None)]


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.is_meta and device.type != "meta":
        raise ConfigError(f"a batch is on the meta device, where tensors hold no values: give one for {device}")
    return tensor.to(device, non_blocking=True)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


class AsModule(nn.Module):
    """A model as a function of its inputs alone, whatever way they reach it, that returns nothing but containers."""

    def __init__(self, model: nn.Module, example: Example) -> None:
        super().__init__()
        self.model = model
        self.example = example

    def forward(self, inputs: Any) -> Any:
        return as_containers(self.example.with_inputs(inputs).run(self.model))


def device_of(model: nn.Module) -> torch.device | None:
    """The device of a model's first parameter or buffer, or None when it has neither."""
    first: Tensor | None = next(model.parameters(), None)
    if first is None:
        first = next(model.buffers(), None)
    return None if first is None else first.device
