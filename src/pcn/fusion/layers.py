"""Principal component layers that take a projection from the pass before them, or multiply their basis out.

Convolutions take U'x as it is and correct their bias, so that layers with and without padding share one projection;
linear layers take U'(x - mu).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pcn.fusion.expansion import Expansion
from pcn.fusion.handed import Handed
from pcn.fusion.pending import Pending
from pcn.fusion.switch import fuses
from pcn.kernels import narrow_conv, pointwise_conv
from pcn.nn import PCConv1d, PCConv2d, PCConv3d, PCLinear, PCModule
from pcn.nn.eights import cut, filled, in_eights
from pcn.nn.functional import (
    compute_dtype,
    convolve,
    convolve_padded,
    for_convolution,
    linear_of_projected,
    pointwise,
    project,
    project_constant,
    project_rows,
    response_to_constant,
)
from pcn.plans.plan import FORMS, Form
from pcn.running.stock import switched_on

if TYPE_CHECKING:
    from pcn.fusion.norms import FusedNorm


@dataclass(frozen=True, eq=False)
class Use:
    """How a layer runs."""

    form: Form = "fused"
    moved: bool = False  # another basis was loaded since: it may differ from that of the layer it shared with
    norm: FusedNorm | None = None  # the batch norm that alone reads the output
    expansion: Expansion | None = None  # of patterns of taps, where there are any


class FusedLayer(PCModule):
    """What the fused layers share; ``use`` says how this one runs."""

    use: Use
    basis: Tensor  # which a layer without runs without us, and likewise its mean
    mean: Tensor

    def forward(self, input: Tensor) -> Tensor:  # the stock layer's name, for those who call it by keyword
        x = input
        if isinstance(x, Pending):
            projected = x.projection_for(self)
            if projected is not None:
                return self._from_projected(projected)
            x = x.tensor()
        possible = forms_of(self) if switched_on() else ()
        if self.use.form == "folded" and "folded" in possible:
            return self._folded(x)
        return self._from_projected(self._project(x)) if "fused" in possible else super().forward(x)

    def _load_from_state_dict(self, *arguments: Any, **keywords: Any) -> None:
        before = [tensor.detach().clone() for tensor in self._frozen]
        super()._load_from_state_dict(*arguments, **keywords)
        if not all(map(_same, before, self._frozen)):
            self.use = replace(self.use, moved=True, expansion=None)

    @property
    def _frozen(self) -> list[Tensor]:
        """What no optimizer changes, and what may therefore be worked out or shared beforehand."""
        patterns = self.tap_patterns
        return [self.basis, self.mean, *(patterns if patterns is not None else ())]

    def _project(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _from_projected(self, projected: Tensor) -> Tensor:
        raise NotImplementedError

    def _folded(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _kernel(self, dtype: torch.dtype) -> Tensor:
        """W~ with every tap, in the dtype that is multiplied in."""
        expansion = self._expansion(dtype)
        return self.full_kernel.to(dtype) if expansion is None else expansion.kernel(self.weight.to(dtype))

    def _dense(self, dtype: torch.dtype) -> Tensor:
        """V W~ Uᵀ, and what is kept beside it, with the channels last in memory."""
        expansion = self._expansion(dtype)
        weight = self.weight.to(dtype) if expansion is not None else self.full_kernel.to(dtype).movedim(1, -1)
        if self.output_basis is not None:
            weight = (self.output_basis.to(dtype) @ weight.flatten(1)).unflatten(1, weight.shape[1:])
        dense = expansion.kernel(weight) if expansion is not None else (weight @ self.basis.to(dtype).T).movedim(-1, 1)
        return dense if self.offset_weight is None else dense + self.offset_weight.to(dtype)

    def _less(self, shift: Tensor) -> Tensor:
        """The bias without what the mean brings."""
        return -shift if self.bias is None else self.bias.to(shift.dtype) - shift

    def _expansion(self, dtype: torch.dtype) -> Expansion | None:
        expansion = self.use.expansion
        return expansion if expansion is not None and expansion.fits(self, dtype) else None


class FusedConv(FusedLayer):
    """What the fused convolutions share."""

    geometry: Any
    kernel_size: tuple[int, ...]

    def _project(self, x: Tensor) -> Tensor:
        directions = self.basis.to(compute_dtype(x)).T
        if not self._by_kernel(x):  # our own want no more than eights
            directions = for_convolution(directions, math.prod(self.kernel_size), x.device)
        return _project_fixed(x, pointwise(directions, len(self.kernel_size)))

    def _from_projected(self, projected: Tensor) -> Tensor:
        kernel = self._kernel(compute_dtype(self.weight))
        if self._hands_over(projected):
            return self._handed(projected, kernel)  # type: ignore[return-value]
        return self._product(projected, kernel, self._constant(kernel))

    def _handed(self, projected: Tensor, kernel: Tensor) -> Handed:
        return Handed(self._product(projected, kernel, None), self, self._constant(kernel))

    def _product(self, projected: Tensor, kernel: Tensor, constant: Tensor | None) -> Tensor:
        bias = None if constant is None else constant.to(kernel.dtype)
        if self.output_basis is None:
            return convolve_padded(projected, kernel, bias, self.geometry, projected=True)
        core = convolve_padded(projected, kernel, None, self.geometry, projected=True)
        outputs = pointwise(self.output_basis.to(core.dtype), core.dim() - 2)
        if bias is not None:
            return convolve(core, outputs, bias, 1)
        return cut(_project_fixed(core, outputs), 1 - outputs.dim(), len(outputs))

    def _folded(self, x: Tensor) -> Tensor:
        dense = self._dense(compute_dtype(x))
        constant = self._less(response_to_constant(dense, self.mean))
        if self._hands_over(x):
            return Handed(convolve_padded(x, dense, None, self.geometry), self, constant)  # type: ignore[return-value]
        return convolve_padded(x, dense, constant.to(dense.dtype), self.geometry)

    def _constant(self, kernel: Tensor) -> Tensor:
        """What is added at every position: b~ - (Σ_k W~_k) Uᵀmu, in fp32 from W~ and U as they are rounded."""
        shift = response_to_constant(kernel, project_constant(self.mean, self.basis.to(kernel.dtype)))
        if self.output_basis is not None:
            shift = response_to_constant(self.output_basis.to(kernel.dtype), shift)
        return self._less(shift)

    def _hands_over(self, x: Tensor) -> bool:
        """Whether the batch norm that reads this output does without the constant."""
        return self.use.norm is not None and self.use.norm.takes_from(self, x)

    def _by_kernel(self, x: Tensor) -> bool:
        """Whether a kernel of ours convolves what is projected."""
        return False


class FusedConv1d(FusedConv, PCConv1d):
    """A fused :class:`PCConv1d`."""


class FusedConv2d(FusedConv, PCConv2d):
    """A fused :class:`PCConv2d`; where it hands its output over, the output's moments come with it."""

    @property
    def gives_moments(self) -> bool:
        """Whether this is a convolution for which there is a kernel that takes them."""
        stride, pads, dilation, _, mode = self.geometry
        sides = {side for pair in pads for side in pair}
        plain = mode == "zeros" and len(set(stride)) == len(sides) == 1 and set(dilation) == {1}
        return plain and self.output_basis is None

    def _by_kernel(self, x: Tensor) -> bool:
        return self.gives_moments and self._hands_over(x) and self.use.norm is not None and self.use.norm.uses_batch

    def _handed(self, projected: Tensor, kernel: Tensor) -> Handed:
        if not self._by_kernel(projected):  # at inference nobody wants the moments
            return super()._handed(projected, kernel)
        filters = filled(kernel, 1, projected.shape[1])
        product, *moments = narrow_conv(projected, filters, self.geometry.stride[0], self.geometry.pads[0][0])
        return Handed(product, self, self._constant(kernel), tuple(moments))


class FusedConv3d(FusedConv, PCConv3d):
    """A fused :class:`PCConv3d`."""


class FusedLinear(FusedLayer, PCLinear):
    """A fused :class:`PCLinear`."""

    def _project(self, x: Tensor) -> Tensor:
        return project_rows(x, self.mean, self.basis)

    def _from_projected(self, projected: Tensor) -> Tensor:
        return linear_of_projected(projected, self.weight, self.bias, self.output_basis)

    def _folded(self, x: Tensor) -> Tensor:
        dtype = compute_dtype(x)
        dense = self._dense(dtype)
        return F.linear(x, dense, self._less(response_to_constant(dense, self.mean)).to(dtype))


LAYERS: dict[type[nn.Module], type[FusedLayer]] = {
    PCConv1d: FusedConv1d,
    PCConv2d: FusedConv2d,
    PCConv3d: FusedConv3d,
    PCLinear: FusedLinear,
}


def _project_fixed(x: Tensor, kernel: Tensor) -> Tensor:
    """Project by a kernel of one pixel that is not trained; where fused code runs, x is not kept for backward."""
    if not (fuses(x) and x.dim() == kernel.dim()):
        return project(x, kernel, None, 1)
    made_x, made_kernel, _ = in_eights(x.to(kernel.dtype), kernel, None, kernel.dtype)
    projected: Tensor = pointwise_conv(made_x, made_kernel)
    return projected


def _same(one: Tensor, another: Tensor) -> bool:
    """Whether two tensors are known to hold the same: nobody knows what those without values hold."""
    alike = (one.device, one.dtype) == (another.device, another.dtype)
    return alike and not one.is_meta and torch.equal(one, another)


def forms_of(layer: PCModule) -> tuple[Form, ...]:
    """How a layer can run; with groups, a trained basis, or none for its input, only in its own way.

    What is kept of a dropped part reads the full width, so there is no projection to wait for.
    """
    if layer.basis is None or layer.train_basis or layer.groups > 1:
        return ()
    return FORMS if layer.offset_weight is None else ("factored", "folded")
