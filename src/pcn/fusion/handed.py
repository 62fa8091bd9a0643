"""A convolution's output on its way to the batch norm that alone reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from pcn.fusion.layers import FusedConv


@dataclass(frozen=True, eq=False)
class Handed:
    """The output without the constant of its layer.

    A batch's own mean takes off again what is the same everywhere, so adding it would be a pass over memory for
    nothing, and its gradient is zero. Only running statistics need it.
    """

    product: Tensor
    layer: FusedConv
    moments: tuple[Tensor, Tensor] | None = None  # the product's, where they came with it

    def constant(self) -> Tensor:
        """What the output lacks, one number for each channel."""
        return self.layer.constant()

    def tensor(self) -> Tensor:
        """The output as the layer's own forward gives it."""
        constant = self.constant().to(self.product.dtype)
        return self.product + constant.view(-1, *[1] * (self.product.dim() - 2))
