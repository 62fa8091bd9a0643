"""What stands for a tensor that is not computed yet, and becomes it for whoever looks."""

from __future__ import annotations

import copy
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch._guards import CompileContext


class StandIn:
    """A value on its way between fused modules; everybody else has the tensor itself, computed then."""

    def tensor(self) -> Tensor:
        """The value."""
        raise NotImplementedError

    def change(self) -> Tensor:
        """The value, for somebody who writes to it."""
        return self.tensor()

    __hash__ = object.__hash__  # as tensors have it, although == compares elements

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """A tensor's, for those who ask with isinstance; the compiler looks up the class's own methods by it."""
        compiles = torch.compiler.is_compiling() or CompileContext.try_get() is not None  # its code, or the compiler's
        return type(self) if compiles else Tensor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.change() if name.endswith("_") else self.tensor(), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.tensor(), memo)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.tensor().__reduce_ex__(protocol)  # stored and sent it is the tensor

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if writes(function):
            args = [value.change() if isinstance(value, StandIn) else value for value in args]
        kwargs = {name: full(value) for name, value in (kwargs or {}).items()}
        return function(*[full(value) for value in args], **kwargs)


def full(value: Any) -> Any:
    """The tensor behind a stand-in, also inside lists and tuples; anything else as it is."""
    if isinstance(value, list | tuple):
        return type(value)([full(item) for item in value])
    return value.tensor() if isinstance(value, StandIn) else value


def writes(function: Any) -> bool:
    """Whether a function may write to its arguments, by its name."""
    name = getattr(function, "__name__", "")
    return name.strip("_") in WRITING or (name.endswith("_") and not name.endswith("__"))


def _forwarded(name: str) -> Any:
    if name in WRITING:
        return lambda self, *arguments: getattr(self.change(), f"__{name}__")(*map(full, arguments))
    return lambda self, *arguments: getattr(self.tensor(), f"__{name}__")(*map(full, arguments))


WRITING = ("setitem", "iadd", "isub", "imul", "itruediv")
READING = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod pow rpow matmul rmatmul neg pos abs invert "
    "eq ne lt le gt ge and or xor getitem len iter bool int float index contains array"
)
for _name in (*READING.split(), *WRITING):  # Python looks for these in the class
    setattr(StandIn, f"__{_name}__", _forwarded(_name))
