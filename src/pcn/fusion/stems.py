"""Ordinary convolutions of few channels, as in a network's first layers, that hand their output to a batch norm."""

from __future__ import annotations

from torch import Tensor, nn

from pcn.fusion.handed import Handed
from pcn.fusion.layers import Use
from pcn.fusion.standin import full
from pcn.kernels import narrow_conv
from pcn.layers import CONVOLUTIONS, TYPE_OF
from pcn.nn.functional import compute_dtype

MOST = 64  # channels: with more, no kernel of ours is faster than PyTorch's and a pass for the moments


class HandingConv2d(nn.Conv2d):
    """An ``nn.Conv2d`` whose output goes, with its moments, to the batch norm that alone reads it."""

    use: Use

    def forward(self, input: Tensor) -> Tensor:
        x = full(input)
        if self.use.norm is None or not self._suits(x) or not self.use.norm.takes_from(self, x):
            return super().forward(x)
        if not self.use.norm.uses_batch:  # at inference nobody wants the moments
            return Handed(self._conv_forward(x, self.weight, None), self, self.bias)  # type: ignore[return-value]
        product, *moments = narrow_conv(x, self.weight, self.stride[0], int(self.padding[0]))
        return Handed(product, self, self.bias, tuple(moments))  # type: ignore[return-value]

    def _suits(self, x: Tensor) -> bool:
        """Whether PyTorch would take this input: of anything else it says what is wrong."""
        return x.dim() == 4 and compute_dtype(x) == compute_dtype(self.weight)


STEMS: dict[type[nn.Module], type[HandingConv2d]] = {nn.Conv2d: HandingConv2d}
TYPE_OF[HandingConv2d] = CONVOLUTIONS[nn.Conv2d]  # for everybody else it is the layer that it was


def is_stem(module: nn.Module) -> bool:
    """Whether there is a kernel for a convolution, and it is made for as few channels."""
    if type(module) is not nn.Conv2d or module.in_channels > MOST or isinstance(module.padding, str):
        return False
    alike = len(set(module.stride)) == len(set(module.padding)) == 1 and set(module.dilation) == {1}
    return alike and module.groups == 1 and module.padding_mode == "zeros"
