"""The forward pass of the principal component layers, as functions of their tensors.

Letters: x the input, U the basis (m, r), mu the mean (m), W~ the projected weight, V the output basis, c = Uᵀmu.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pcn.maths.autocast import autocasts
from pcn.nn.eights import cut, filled, in_eights, wanted

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Geometry(NamedTuple):
    """How a convolution moves over its input."""

    stride: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]  # before and after, for every spatial dimension
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str

    @property
    def pads_with_zeros(self) -> bool:
        """Whether the input is padded with something that does not commute with centring."""
        return self.padding_mode == "zeros" and any(map(any, self.pads))


def pads_of(
    kernel_size: tuple[int, ...], dilation: tuple[int, ...], padding: tuple[int, ...] | str
) -> tuple[tuple[int, int], ...]:
    """What a convolution puts before and after its input, in every spatial dimension, by its ``padding``.

    >>> pads_of((3, 4), (1, 1), "same"), pads_of((3, 4), (1, 1), (2, 0))
    (((1, 1), (1, 2)), ((2, 2), (0, 0)))
    """
    if padding == "valid":
        return ((0, 0),) * len(kernel_size)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel_size, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((int(side), int(side)) for side in padding)


def sides(pads: tuple[tuple[int, int], ...]) -> list[int]:
    """The same as ``F.pad`` takes it: the last dimension first."""
    return [side for pair in reversed(pads) for side in pair]


def pc_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    basis: Tensor | None,
    offset_weight: Tensor | None = None,
    output_basis: Tensor | None = None,
) -> Tensor:
    """Return V W~ Uᵀ(x - mu) + b~, plus the offset's W (x - mu), for x of shape (..., m)."""
    projected = x if basis is None or mean is None else project_rows(x, mean, basis)
    y = linear_of_projected(projected, weight, bias, output_basis)
    if offset_weight is None:
        return y
    dtype = compute_dtype(x)
    offset_weight = offset_weight.to(dtype)
    return y + F.linear(x, offset_weight, _less_response(offset_weight, mean, 1, dtype))


def project_rows(x: Tensor, mean: Tensor, basis: Tensor) -> Tensor:
    """Return Uᵀ(x - mu), which may have zeros at its end (see pcn.nn.eights)."""
    dtype = compute_dtype(x)
    basis = filled(basis.to(dtype), 1, wanted(basis.shape[1], x.device, dtype))
    return F.linear(x, basis.T, -project_constant(mean, basis).to(dtype))


def linear_of_projected(projected: Tensor, weight: Tensor, bias: Tensor | None, output_basis: Tensor | None) -> Tensor:
    """Return V W~ z + b~ for what :func:`project_rows` returned."""
    weight = filled(weight, 1, projected.shape[-1])
    if output_basis is None:
        return F.linear(projected, weight, bias)
    return F.linear(F.linear(projected, weight), output_basis.to(compute_dtype(projected)), bias)


def pc_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    basis: Tensor | None,
    geometry: Geometry,
    offset_weight: Tensor | None = None,
    output_basis: Tensor | None = None,
) -> Tensor:
    """Return the convolution of pad(x), centred and projected, for x of shape (..., m, *spatial).

    Zeros that stand around the projected input mean c there, not 0. A constant makes up for it at every pixel, so the
    input need not be padded and centred: y = conv_zero_padded(Uᵀx; W~) + b~ - (Σ_k W~_k) c.
    """
    dtype, groups, spatial = compute_dtype(x), geometry.groups, weight.dim() - 2
    if basis is None or mean is None:
        projected, shift = x, None
    else:
        projected, shift = _projected(x, weight, mean, basis.to(dtype), geometry)
    along = basis is not None
    if output_basis is None:
        added = bias if shift is None else (shift if bias is None else bias + shift).to(dtype)
        y = convolve_padded(projected, weight, added, geometry, projected=along)
    else:
        moved = None if shift is None else shift.to(dtype)
        core = convolve_padded(projected, weight, moved, geometry, projected=along)
        y = convolve(core, pointwise(output_basis.to(dtype), spatial), bias, groups)
    if offset_weight is None:
        return y
    offset_weight = offset_weight.to(dtype)
    return y + convolve_padded(x, offset_weight, _less_response(offset_weight, mean, groups, dtype), geometry)


def _projected(
    x: Tensor, weight: Tensor, mean: Tensor, basis: Tensor, geometry: Geometry
) -> tuple[Tensor, Tensor | None]:
    """Project images, and return what is to be added at every pixel behind the convolution, if anything."""
    groups, dtype = geometry.groups, basis.dtype
    directions = by_group(basis, groups).transpose(1, 2).flatten(0, 1)
    taps = weight.shape[2:].numel()
    kernel = pointwise(for_convolution(directions, taps, x.device) if groups == 1 else directions, weight.dim() - 2)
    centre = project_constant(mean, basis, groups)
    if geometry.pads_with_zeros:
        return project(x, kernel, None, groups), -response_to_constant(weight.to(dtype), centre, groups)
    return project(x, kernel, filled(-centre.to(dtype), 0, len(kernel)), groups), None


def _less_response(weight: Tensor, mean: Tensor | None, groups: int, dtype: torch.dtype) -> Tensor | None:
    """What centring takes off behind a weight, which is nothing where inputs are read as they are."""
    return None if mean is None else -response_to_constant(weight, mean, groups).to(dtype)


def for_convolution(directions: Tensor, taps: int, device: torch.device) -> Tensor:
    """Add directions that are zero, so that what is projected on them has as many channels as convolutions want."""
    return filled(directions, 0, wanted(len(directions), device, directions.dtype, taps))


def project(x: Tensor, kernel: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """Convolve with a kernel of one pixel; the result may have channels of zeros at its end (see pcn.nn.eights)."""
    ones = (1,) * (kernel.dim() - 2)
    x, kernel, bias = (x, kernel, bias) if groups > 1 else in_eights(x, kernel, bias, compute_dtype(x))
    return CONVOLUTIONS[len(ones)](x, kernel, bias, ones, 0, ones, groups)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """Convolve with a kernel of one pixel."""
    return cut(project(x, kernel, bias, groups), 1 - kernel.dim(), kernel.shape[0])


def convolve_padded(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, *, projected: bool = False
) -> Tensor:
    """Pad and convolve as a stock layer does; x may be what :func:`project` returned."""
    stride, pads, dilation, groups, mode = geometry
    padding = tuple(before for before, _ in pads)
    if mode != "zeros" or any(before != after for before, after in pads):
        x = F.pad(x, sides(pads), mode="constant" if mode == "zeros" else mode)
        padding = (0,) * len(pads)
    filters = weight.shape[0]
    if groups == 1:
        x, weight, bias = in_eights(x, weight, bias, compute_dtype(x), partly_filled=projected)
    y = CONVOLUTIONS[weight.dim() - 2](x, weight, bias, stride, padding, dilation, groups)
    return cut(y, 1 - weight.dim(), filters)


def by_group(matrix: Tensor, groups: int) -> Tensor:
    """Turn (g*a, b) into (g, a, b)."""
    return matrix.reshape(groups, -1, matrix.shape[1])


def pointwise(matrix: Tensor, spatial: int) -> Tensor:
    """Turn a matrix into the kernel of a convolution over single pixels."""
    return matrix.reshape(*matrix.shape, *[1] * spatial).contiguous()


def project_constant(mean: Tensor, basis: Tensor, groups: int = 1) -> Tensor:
    """Return c = Uᵀmu, of shape (g*r,), in float32 or wider; written so that a compiler makes one kernel of it."""
    wide = torch.promote_types(basis.dtype, torch.float32)
    return (by_group(basis.to(wide), groups) * mean.to(wide).reshape(groups, -1, 1)).sum(1).flatten()


def response_to_constant(weight: Tensor, constant: Tensor, groups: int = 1) -> Tensor:
    """Return Σ_{m,k} W[n, m, k] v[m] for a vector v that stands at every position, in float32 or wider."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    each = weight.to(wide).reshape(groups, -1, weight.shape[1], weight.shape[2:].numel())
    return (each * constant.to(wide).reshape(groups, 1, -1, 1)).sum((2, 3)).flatten()


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which a layer multiplies: autocast's where it is on, else the input's own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if autocasts(device) and x.dtype != torch.float64 else x.dtype
