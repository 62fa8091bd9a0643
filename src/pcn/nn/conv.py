"""The principal component layers that stand for ``nn.Conv1d``, ``nn.Conv2d`` and ``nn.Conv3d``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from pcn.errors import ConfigError
from pcn.nn.base import PCModule
from pcn.nn.functional import Geometry, pads_of, pc_conv

Size = int | Sequence[int]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class PCConvNd(PCModule):
    """What the three convolutions share; its arguments are the stock layer's, and ranks count per group."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        rank: int | None,
        *,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        train_basis: bool = False,
        offset: bool = False,
        output_rank: int | None = None,
        centred: bool = True,
        kernel_rank: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups
        stock = self._stock(*sizes, padding_mode=padding_mode)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size: tuple[int, ...] = stock.kernel_size
        self.stride: tuple[int, ...] = stock.stride
        self.padding: tuple[int, ...] | str = stock.padding
        self.dilation: tuple[int, ...] = stock.dilation
        self.groups, self.padding_mode = groups, padding_mode
        self._make_tensors(
            in_channels,
            out_channels,
            self.kernel_size,
            rank,
            output_rank,
            train_basis,
            offset,
            kernel_rank,
            bias=bias,
            centred=centred,
            device=device,
            dtype=dtype,
        )

    def _stock(self, *sizes: Any, padding_mode: str) -> Any:
        """Make the stock layer on the meta device: it checks the arguments and spells them out."""
        try:
            return self.stock(*sizes, padding_mode=padding_mode, device="meta")
        except ValueError as error:
            raise ConfigError(f"{type(self).__name__}: {error}") from error

    @property
    def geometry(self) -> Geometry:
        pads = pads_of(self.kernel_size, self.dilation, self.padding)
        return Geometry(self.stride, pads, self.dilation, self.groups, self.padding_mode)

    def forward(self, input: Tensor) -> Tensor:  # the stock layer's name, for those who call it by keyword
        tensors = self.full_kernel, self.bias, self.mean, self.basis
        return pc_conv(input, *tensors, self.geometry, self.offset_weight, self.output_basis)

    def extra_repr(self) -> str:
        said = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        ones, zeros = (1,) * len(self.kernel_size), (0,) * len(self.kernel_size)
        plain = {"padding": zeros, "dilation": ones, "groups": 1, "padding_mode": "zeros"}
        for name, default in plain.items():
            if (value := getattr(self, name)) != default:
                said += f", {name}={value!r}" if isinstance(value, str) else f", {name}={value}"
        return said + (", bias=False" if self.bias is None else "") + self._extra()


class PCConv1d(PCConvNd):
    """A 1-d convolution that reads its input in ``rank`` directions."""

    stock: ClassVar[type[Any]] = nn.Conv1d


class PCConv2d(PCConvNd):
    """A 2-d convolution that reads its input in ``rank`` directions.

    >>> layer = PCConv2d(64, 32, 3, rank=8, padding=1)
    >>> layer(torch.randn(2, 64, 9, 9)).shape, layer
    (torch.Size([2, 32, 9, 9]), PCConv2d(64, 32, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), rank=8))
    """

    stock: ClassVar[type[Any]] = nn.Conv2d


class PCConv3d(PCConvNd):
    """A 3-d convolution that reads its input in ``rank`` directions."""

    stock: ClassVar[type[Any]] = nn.Conv3d
