"""A value between a batch norm and its readers that is worked out when it is known who reads it, in one pass."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from pcn.fusion.layers import FusedLayer
    from pcn.fusion.norms import FusedNorm

RELU = frozenset({F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_})
ADD = frozenset({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, operator.add})
ADD_IN_PLACE = frozenset({Tensor.add_, Tensor.__iadd__, operator.iadd})
IN_PLACE = frozenset({torch.relu_, F.relu_, Tensor.relu_})


class Pending:
    """bn(z), then perhaps + s, then ReLU: not computed yet.

    A principal component layer takes its projection. Whatever else is done with it happens to the tensor itself, which
    is computed then: a reader that nobody foresaw costs time and changes nothing.
    """

    def __init__(
        self,
        norm: FusedNorm,
        rows: Tensor,
        shape: torch.Size,
        statistics: tuple[Tensor, Tensor],
        added: Tensor | None = None,
        relu: bool = False,
    ) -> None:
        self.norm, self.rows, self.full_shape, self.statistics = norm, rows, shape, statistics
        self.added, self.relu_applied = added, relu
        self.value: Tensor | None = None
        self.projected: Tensor | None = None
        self.changed = False  # in place, after it was computed

    def with_relu(self) -> Pending | Tensor:
        if self.relu_applied or self.value is not None:
            return self.tensor().relu()
        return Pending(self.norm, self.rows, self.full_shape, self.statistics, self.added, relu=True)

    def plus(self, other: Any) -> Pending | Tensor:
        """Add in the same pass what has the same shape and dtype; anything else is added afterwards."""
        other = full(other)
        same = isinstance(other, Tensor) and other.shape == self.full_shape and other.dtype == self.rows.dtype
        if not same or not self.bare:
            return torch.add(self.tensor(), other)
        return Pending(self.norm, self.rows, self.full_shape, self.statistics, other)

    @property
    def bare(self) -> bool:
        """Whether this is batch norm's output alone, to which the chain adds something."""
        fresh = self.added is None and not self.relu_applied and self.value is None
        return fresh and self.norm.chain.added

    def become(self, other: Pending | Tensor) -> Pending:
        """Be what an operator in place has made of this."""
        if isinstance(other, Pending):
            self.added, self.relu_applied = other.added, other.relu_applied
            self.value, self.projected = other.value, other.projected
        else:
            self.value, self.changed = other, True
        return self

    def change(self) -> Tensor:
        """The value at its full width, for somebody who writes to it."""
        value, self.changed = self.tensor(), True
        return value

    def projection_for(self, reader: FusedLayer) -> Tensor | None:
        """The projection that this reader wants, or None where the chain has none for it."""
        if self.changed or not self.relu_applied or not self.norm.chain.projects_for(reader):
            return None
        self._run()
        return self.projected

    def tensor(self) -> Tensor:
        """The value at its full width."""
        if self.value is None:
            foreseen = self.relu_applied and self.norm.chain.emit
            if foreseen:
                self._run()
            if self.value is None:
                self.value, _ = self.norm.finish(self, emit=True, project=False)
        assert self.value is not None
        return self.value

    def _run(self) -> None:
        if self.projected is None and self.value is None:
            chain = self.norm.chain
            self.value, self.projected = self.norm.finish(self, emit=chain.emit, project=chain.projects)

    def __add__(self, other: Any) -> Any:
        return _sum(self, other)

    __radd__ = __add__

    def __iadd__(self, other: Any) -> Pending:
        return self.become(self.plus(other))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.change() if name.endswith("_") else self.tensor(), name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if function in RELU and isinstance(first, Pending):
            if function in IN_PLACE or kwargs.get("inplace"):
                return first.become(first.with_relu())
            return first.with_relu()
        if function in ADD and len(args) == 2 and not kwargs:
            return _sum(args[0], args[1])
        if function in ADD_IN_PLACE and len(args) == 2 and not kwargs and isinstance(first, Pending):
            return first.become(first.plus(args[1]))
        if _writes(function):
            args = [value.change() if isinstance(value, Pending) else value for value in args]
        return function(*[full(value) for value in args], **{name: full(value) for name, value in kwargs.items()})


def _writes(function: Any) -> bool:
    """Whether a function may write to its arguments, by its name."""
    name = getattr(function, "__name__", "")
    return name.strip("_") in WRITING or (name.endswith("_") and not name.endswith("__"))


def _forwarded(name: str) -> Any:
    if name in WRITING:
        return lambda self, *arguments: getattr(self.change(), f"__{name}__")(*map(full, arguments))
    return lambda self, *arguments: getattr(self.tensor(), f"__{name}__")(*map(full, arguments))


WRITING = ("setitem", "isub", "imul", "itruediv")
READING = (
    "sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod pow rpow matmul rmatmul neg pos abs invert "
    "lt le gt ge and or xor getitem len iter bool int float index contains array"
)
for _name in (*READING.split(), *WRITING):  # Python looks for these in the class
    setattr(Pending, f"__{_name}__", _forwarded(_name))


def full(value: Any) -> Any:
    """The tensor behind a pending value, also inside lists and tuples; anything else as it is."""
    if isinstance(value, list | tuple):
        return type(value)([full(item) for item in value])
    return value.tensor() if isinstance(value, Pending) else value


def _sum(left: Any, right: Any) -> Any:
    """Add in the pass of whichever of the two is still a bare batch norm."""
    if isinstance(left, Pending) and left.bare:
        return left.plus(right)
    if isinstance(right, Pending) and right.bare:
        return right.plus(left)
    return torch.add(full(left), full(right))
