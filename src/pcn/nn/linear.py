"""The principal component layer that stands for ``nn.Linear``."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pcn.nn.base import PCModule
from pcn.nn.functional import pc_linear


class PCLinear(PCModule):
    """A linear layer that reads its input in ``rank`` directions, or puts out along ``output_rank``, or both.

    >>> layer = PCLinear(64, 10, rank=8)
    >>> layer(torch.randn(5, 64)).shape, layer
    (torch.Size([5, 10]), PCLinear(in_features=64, out_features=10, bias=True, rank=8))
    >>> PCLinear(64, 10, rank=None, output_rank=4)
    PCLinear(in_features=64, out_features=10, bias=True, output_rank=4)
    """

    stock: ClassVar[type[Any]] = nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int | None,
        *,
        bias: bool = True,
        train_basis: bool = False,
        offset: bool = False,
        output_rank: int | None = None,
        centred: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._make_tensors(
            in_features,
            out_features,
            (),
            rank,
            output_rank,
            train_basis,
            offset,
            bias=bias,
            centred=centred,
            device=device,
            dtype=dtype,
        )

    def forward(self, input: Tensor) -> Tensor:  # the stock layer's name, for those who call it by keyword
        tensors = self.weight, self.bias, self.mean, self.basis, self.offset_weight, self.output_basis
        return pc_linear(input, *tensors)

    def extra_repr(self) -> str:
        has_bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has_bias}{self._extra()}"
