"""A layer's input on its way in: looked at, or replaced, while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

Change = Callable[[Tensor], Tensor]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@contextmanager
def changed_inputs(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Have the named layers read what their functions make of their inputs."""
    with ExitStack() as hooks:
        for name, change in changes.items():
            handle = model.get_submodule(name).register_forward_pre_hook(_hook(change), with_kwargs=True)
            hooks.callback(handle.remove)
        yield


def _hook(change: Change) -> Callable[..., Arguments]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        first, *_ = kwargs
        return args, {**kwargs, first: change(kwargs[first])}

    return hook


def over_samples(x: Tensor) -> Tensor:
    """What a layer reads in all samples, also where ``torch.vmap`` hands it one after another, so to speak.

    >>> seen = []
    >>> _ = torch.vmap(lambda row: seen.append(over_samples(row).shape) or row)(torch.ones(5, 3))
    >>> seen
    [torch.Size([5, 3])]
    """
    functorch = torch._C._functorch
    while functorch.is_batchedtensor(x):
        x = functorch.get_unwrapped(x).movedim(functorch.maybe_get_bdim(x), 0)
    return x


def as_vectors(x: Tensor, spatial: int, groups: int) -> Tensor:
    """View a layer's input as (samples, positions, groups, channels of one)."""
    x = x.unsqueeze(0) if x.dim() == spatial + 1 else x
    x = x.movedim(-(spatial + 1), -1)
    # The positions are counted: of no samples, which a layer of experts may get, reshape could not tell them.
    return x.reshape(len(x), prod(x.shape[1:-1]), groups, x.shape[-1] // groups)
