"""A kernel out of coordinates along patterns of taps in one product: what is frozen of it is multiplied out once."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor

from pcn.maths.patterns import contributions
from pcn.nn import PCModule
from pcn.nn.functional import compute_dtype


@dataclass(frozen=True, eq=False)
class Expansion:
    """What each coordinate adds to a layer's kernel, and what made it.

    It is a matrix (patterns, taps * directions or channels) whose rows have a ``shape``, (*kernel, directions or
    channels): a tensor of four dimensions is an image to the compiler, which copies it into another layout at every
    step, forward and backward.

    It is in the dtype in which the layer multiplied when it was fused. Where that has changed, or one of the tensors
    that it is made of, the layer works its kernel out as it does by itself.
    """

    frozen: Tensor
    shape: tuple[int, ...]
    made_of: tuple[Tensor, ...]
    versions: tuple[int, ...]

    @classmethod
    def of(cls, layer: PCModule, *, dense: bool) -> Expansion | None:
        """Multiply out what is frozen of a layer with patterns: over its directions, or over its channels."""
        patterns, basis = layer.tap_patterns, layer.basis
        if patterns is None or basis is None or layer.groups > 1:
            return None
        with torch.inference_mode(False):  # whoever fuses for inference may train later
            frozen = contributions(patterns, basis.mT if dense else None).to(compute_dtype(layer.weight))
        return cls.counted((*patterns, basis), frozen.flatten(1), tuple(frozen.shape[1:]))

    @classmethod
    def counted(cls, made_of: tuple[Tensor, ...], frozen: Tensor, shape: tuple[int, ...]) -> Expansion:
        """What is made of these tensors as they are now."""
        return cls(frozen, shape, made_of, _versions(made_of))

    def fits(self, layer: PCModule, dtype: torch.dtype) -> bool:
        """Whether this is still what a layer is to multiply by.

        Compiled code notices other tensors in the place of these, not what is written to them once it is compiled.
        """
        now = (layer.kernel_basis, layer.kernel_mask, layer.basis)
        alike = self.frozen.dtype == dtype and self.frozen.device == layer.weight.device
        return alike and all(map(is_, now, self.made_of)) and self.unwritten()

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def unwritten(self) -> bool:
        """Whether nobody has written to what this is made of."""
        return self.versions == _versions(self.made_of)

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and files, whose tensors are counted anew; there is none of what fits no longer."""
        return (Expansion.counted, (self.made_of, self.frozen, self.shape)) if self.unwritten() else (type(None), ())

    def kernel(self, coordinates: Tensor) -> Tensor:
        """The kernel (n, directions or channels, *kernel) of coordinates (n, patterns), its second dimension last."""
        made: Tensor = (coordinates @ self.frozen).unflatten(1, self.shape)
        return made.movedim(-1, 1)


def _versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    """How often each was written to; of those made for inference nobody knows."""
    return tuple(tensor._version for tensor in tensors if not tensor.is_inference())
