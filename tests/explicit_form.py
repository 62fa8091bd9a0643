"""The paper's layers spelled out (pad, centre, project, convolve), and random layers to hold them against."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

STOCK = {0: nn.Linear, 1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass
class Case:
    """A stock layer in float64, an input for it, and a mean and an orthonormal basis of its input space."""

    layer: Any
    x: Tensor
    mean: Tensor
    basis: Tensor  # (m, m/g): all directions
    rank: int

    @property
    def groups(self) -> int:
        return getattr(self.layer, "groups", 1)

    @property
    def truncated(self) -> Tensor:
        return self.basis[:, : self.rank]

    def stock_output(self) -> Tensor:
        """Call the stock layer, which warns when it has to pad one side more than the other."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using padding='same' with even kernel")
            return self.layer(self.x)


@st.composite
def cases(draw: st.DrawFn, dims: tuple[int, ...] = (0, 1, 2, 3)) -> Case:
    """Draw a layer of any kind with any geometry, and an input that it accepts."""
    spatial = draw(st.sampled_from(dims))
    groups = draw(st.sampled_from([1, 1, 2, 3])) if spatial else 1
    width, rows = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    arguments: dict[str, Any] = {"bias": draw(st.booleans()), "dtype": torch.float64}
    size: tuple[int, ...] = ()
    if spatial:
        geometry = draw(geometries(spatial))
        size = tuple(draw(st.integers(low, low + 2)) for low in _least_sizes(geometry))
        arguments |= geometry | {"groups": groups}
    lead = draw(st.sampled_from([(), (1,), (2,)] if spatial else [(), (2,), (2, 3)]))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    layer = STOCK[spatial](groups * width, groups * rows, **arguments)
    x = torch.randn(*lead, groups * width, *size, dtype=torch.float64) + 1
    mean = torch.randn(groups * width, dtype=torch.float64)
    return Case(layer, x, mean, orthonormal(groups, width), draw(st.integers(1, width)))


@st.composite
def geometries(draw: st.DrawFn, spatial: int) -> dict[str, Any]:
    """Draw the keyword arguments of a convolution."""

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(spatial))

    padding = draw(st.sampled_from(["same", "valid", "numbers", "numbers"]))
    return {
        "kernel_size": each(1, 3),
        "dilation": each(1, 2),
        "stride": 1 if padding == "same" else each(1, 2),
        "padding": each(0, 2) if padding == "numbers" else padding,
        "padding_mode": draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    }


def _least_sizes(geometry: dict[str, Any]) -> list[int]:
    """The least size that the kernel fits into and that reflection can be taken from."""
    pads = geometry["padding"]
    reach = [d * (k - 1) for d, k in zip(geometry["dilation"], geometry["kernel_size"], strict=True)]
    pads = (0,) * len(reach) if pads == "valid" else reach if pads == "same" else pads
    return [max(r + 1 - 2 * p, p + 1) for r, p in zip(reach, pads, strict=True)]


def orthonormal(groups: int, width: int) -> Tensor:
    """One random orthonormal basis per group, stacked: (groups * width, width)."""
    return torch.cat([torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0] for _ in range(groups)])


def pad(x: Tensor, layer: Any) -> Tensor:
    """Pad an input as the stock layer would; a Linear pads nothing."""
    if isinstance(layer, nn.Linear):
        return x
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)


def channels_last(x: Tensor, layer: Any) -> Tensor:
    return x.movedim(-layer.weight.dim() + 1, -1)


def channels_first(x: Tensor, layer: Any) -> Tensor:
    return x.movedim(-1, -layer.weight.dim() + 1)


def convolve_valid(x: Tensor, weight: Tensor, bias: Tensor | None, layer: Any) -> Tensor:
    """Apply a weight to an input that is padded already, moving over it as the layer does."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    return CONVOLVE[weight.dim() - 2](x, weight, bias, layer.stride, 0, layer.dilation, layer.groups)


def explicit(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, basis: Tensor, layer: Any) -> Tensor:
    """Pad, centre, project, then convolve what is left without padding: the paper's definition, step by step."""
    centred = channels_last(pad(x, layer), layer) - mean
    groups = getattr(layer, "groups", 1)
    parts = zip(centred.chunk(groups, -1), basis.chunk(groups), strict=True)
    projected = torch.cat([part @ rows for part, rows in parts], -1)
    return convolve_valid(channels_first(projected, layer), weight, bias, layer)


def distance(first: Tensor, second: Tensor) -> float:
    """The largest difference, relative to the largest value (or to 1 where all values are smaller)."""
    assert first.shape == second.shape
    if first.numel() == 0:
        return 0.0
    return ((first - second).abs().max() / second.abs().max().clamp_min(1.0)).item()
