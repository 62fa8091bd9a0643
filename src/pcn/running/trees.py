"""Tensors inside whatever people hand to models and get from them: containers, dataclasses, objects of their own."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

CODE = (nn.Module, type, ModuleType, FunctionType, MethodType)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a value, also those that are attributes of objects, in order.

    >>> import torch
    >>> class Graph:
    ...     def __init__(self) -> None:
    ...         self.nodes, self.name = torch.ones(3, 2), "a"
    >>> [tuple(tensor.shape) for tensor in tensors_in({"graph": Graph(), "more": [torch.ones(1)]})]
    [(3, 2), (1,)]
    """
    return list(_tensors(value, {}))


def _tensors(value: Any, seen: dict[int, Any]) -> Iterator[Tensor]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif id(leaf) not in seen:  # objects may hold one another
            seen[id(leaf)] = leaf
            yield from _tensors(_held_by(leaf), seen)


def _held_by(leaf: Any) -> list[Any]:
    """What an object holds that no container is; models and code are nothing that a batch would be made of."""
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    return [] if isinstance(leaf, CODE) else list(getattr(leaf, "__dict__", {}).values())


def as_containers(value: Any) -> Any:
    """A value of containers, tensors and numbers as it is; of one that holds other objects, its tensors."""
    plain = Tensor | int | float | complex | str | None
    return value if all(isinstance(leaf, plain) for leaf in tree_leaves(value)) else tensors_in(value)


def fresh_copy(value: Any, tensors: bool = True, known: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """The same in containers and objects of its own, with ``tensors`` of its own too: it may be changed.

    ``known`` has objects and their copies, by the ids of the objects, which stay their own as long as they are held.

    >>> given = {"x": [1, 2]}
    >>> fresh_copy(given)["x"].pop(), given
    (2, {'x': [1, 2]})
    """
    return tree_map(partial(_copied, tensors=tensors, known={} if known is None else known), value)


def _copied(leaf: Any, tensors: bool, known: dict[int, tuple[Any, Any]]) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.clone() if tensors else leaf
    if isinstance(leaf, MutableMapping):  # one that pytrees do not know
        new = copy.copy(leaf)
        new.update({key: fresh_copy(each, tensors, known) for key, each in leaf.items()})
        return new
    if id(leaf) in known:
        return known[id(leaf)][1]
    if not tensors_in(leaf):
        return leaf
    try:
        new = copy.copy(leaf)
    except Exception:  # nobody knows how to copy it
        return leaf
    known[id(leaf)] = leaf, new
    held = getattr(new, "__dict__", {})
    held.update({name: fresh_copy(each, tensors, known) for name, each in held.items()})
    return new
