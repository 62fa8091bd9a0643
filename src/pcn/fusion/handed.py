"""A convolution's output on its way to the batch norm that alone reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pcn.fusion.standin import StandIn

if TYPE_CHECKING:
    from pcn.fusion.layers import FusedConv
    from pcn.fusion.stems import HandingConv2d


class Handed(StandIn):
    """The output without the constant of its layer.

    A batch's own mean takes off again what is the same everywhere, so adding it would be a pass over memory for
    nothing, and its gradient is zero. Only running statistics need it. At inference it is taken off the running mean,
    which is as good as adding it here. Whoever else looks at it sees the output as the layer's own forward gives it,
    and from then on so does the batch norm.
    """

    def __init__(
        self,
        product: Tensor,
        layer: FusedConv | HandingConv2d,
        constant: Tensor | None,
        moments: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.product, self.layer = product, layer
        self.constant = constant  # what the product lacks
        self.moments = moments  # the product's, where they came with it
        self.differentiable = torch.is_grad_enabled()
        self.value: Tensor | None = None

    @property
    def untouched(self) -> bool:
        """Whether nobody has looked."""
        return self.value is None

    def tensor(self) -> Tensor:
        if self.value is None:
            self.value = self.product if self.constant is None else self._complete(self.constant)
        return self.value

    def _complete(self, constant: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.differentiable):
            return self.product + constant.to(self.product.dtype).view(-1, *[1] * (self.product.dim() - 2))
