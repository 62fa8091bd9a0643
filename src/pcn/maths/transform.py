"""The paper's changes of basis as pure functions on weights of shape (n, m/g, *kernel), computed in float64.

Letters: m inputs, n outputs, r rank, s output rank, g groups; U the basis (m, r), mu the mean (m), V the output
basis (n, s). Row i of a basis belongs to group i // (m/g). Results have the dtype and the device of the weight.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pcn.config import Order
from pcn.errors import PlanError
from pcn.maths.patterns import Patterns, coordinates, full_kernel
from pcn.maths.products import (
    cast,
    exact,
    expand,
    grouped,
    project,
    project_outputs,
    response_to_constant,
    select_inputs,
    unproject,
)


class Projected(NamedTuple):
    """The tensors of one principal component layer, under the names that the layer gives them."""

    weight: Tensor  # (n, r, *kernel), or (g*s, r, *kernel) with an output basis
    bias: Tensor | None  # (n,); where there is none the mean is zero
    mean: Tensor | None  # (m,)
    basis: Tensor | None  # (m, r); without one, and without a mean, the input is read as it is
    offset_weight: Tensor | None = None  # (n, m/g, *kernel)
    output_basis: Tensor | None = None  # (n, s)
    kernel_basis: Tensor | None = None  # p patterns of taps (g*p, *kernel); the weight is (..., p) then
    kernel_mask: Tensor | None = None  # (g*r, taps), how many of them belong to each direction

    @property
    def patterns(self) -> Patterns | None:
        if self.kernel_basis is None or self.kernel_mask is None:
            return None
        return Patterns(self.kernel_basis, self.kernel_mask)


class Factors(NamedTuple):
    """The same function as a chain of plain layers: projection, layer, and expansion with an output basis."""

    projection: Tensor | None  # (g*r, m/g, 1, ...); None where the input is read as it is
    weight: Tensor  # (n or g*s, r, *kernel)
    bias: Tensor | None  # (n,), of the last layer in the chain
    expansion: Tensor | None  # (n, s, 1, ...)


def input_transform(
    weight: Tensor, bias: Tensor | None, mean: Tensor, basis: Tensor, groups: int = 1
) -> tuple[Tensor, Tensor]:
    """Return W~ = W U and b~ = b + W mu, the paper's Eq. 3."""
    return project(weight, basis, groups), _shifted_bias(weight, bias, mean, groups)


def reader_transform(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    basis: Tensor,
    *,
    kept: Tensor | None,
    order: Order,
    groups: int = 1,
    block_basis: Tensor | None = None,
    dual: Tensor | None = None,
) -> Projected:
    """Transform a layer of which only the inputs ``kept`` (sorted, over all m; None means all) survive.

    ``truncate_first`` counts a dropped input as zero, ``project_first`` and ``kept_block`` as its mean. For
    ``kept_block``, ``block_basis`` (m', r) holds the eigenvectors of the kept block of the covariance. Where the basis
    is not orthonormal, ``dual`` (m, r) leads back from its coordinates: x is taken for mu + dual basisᵀ(x - mu).
    """
    dual = basis if dual is None else dual
    kept_weight, kept_mean, kept_basis = select_inputs(weight, kept, groups), _rows(mean, kept), _rows(basis, kept)
    if order == "truncate_first":
        projected, shifted = input_transform(kept_weight, bias, kept_mean, _rows(dual, kept), groups)
    elif order == "project_first":
        projected, shifted = input_transform(weight, bias, mean, dual, groups)
    elif kept is None or block_basis is not None:
        kept_basis = basis if block_basis is None else block_basis
        projected, shifted = project(kept_weight, kept_basis, groups), _shifted_bias(weight, bias, mean, groups)
    else:
        raise PlanError("order 'kept_block' needs block_basis, the eigenvectors of the kept block of the covariance")
    return Projected(projected, shifted, cast(kept_mean, weight), cast(kept_basis, weight))


def writer_transform(
    weight: Tensor, bias: Tensor | None, mean: Tensor | None, output_basis: Tensor, groups: int = 1
) -> Projected:
    """Have a layer that reads its input as it is train s outputs: y = V (Vᵀ W) x + b.

    With a ``mean`` of its input, the bias takes over what the basis loses of the response to that.
    """
    projected = with_output_basis(Projected(weight, bias, None, None), output_basis, groups)
    if mean is None:
        return projected
    lost = dropped_part(weight, projected, groups)
    return projected._replace(bias=_shifted_bias(lost, bias, mean, groups))


def with_output_basis(projected: Projected, output_basis: Tensor, groups: int = 1) -> Projected:
    """Have s outputs trained and expanded by V, orthonormal columns within each group: the weight becomes Vᵀ W~."""
    core = project_outputs(projected.weight, output_basis, groups)
    return projected._replace(weight=core, output_basis=cast(output_basis, projected.weight))


def with_patterns(projected: Projected, patterns: Patterns, dual: Tensor, groups: int = 1) -> Projected:
    """Have directions read in patterns of taps; ``dual`` leads back from these coordinates."""
    weight = coordinates(projected.weight, Patterns(dual, patterns.mask), groups)
    basis, mask = (cast(each, projected.weight) for each in patterns)
    return projected._replace(weight=weight, kernel_basis=basis, kernel_mask=mask)


def scaled(projected: Projected, scale: Tensor) -> Projected:
    """Have the coordinates of every group ``scale`` (g,) times as large, and their weights as much smaller."""

    def of_group(rows: Tensor) -> Tensor:
        each = scale.to(rows).repeat_interleave(len(rows) // len(scale))
        return each.view(-1, *[1] * (rows.dim() - 1))

    weight, basis = projected.weight, projected.basis
    assert basis is not None
    return projected._replace(weight=weight / of_group(weight), basis=basis * of_group(basis))


def dropped_part(weight: Tensor, projected: Projected, groups: int = 1) -> Tensor:
    """Return W - V W~ Uᵀ, what truncated bases lose of the weight."""
    kernel = full_kernel(projected.weight, projected.patterns, groups)
    kept = _unprojected(expand(kernel, projected.output_basis, groups), projected.basis, groups)
    return cast(exact(weight, weight) - kept, weight)


def dense_form(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    basis: Tensor | None,
    groups: int = 1,
    offset: Tensor | None = None,
    output_basis: Tensor | None = None,
    patterns: Patterns | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Multiply everything out: return the weight and bias of the plain layer that computes the same function."""
    kernel = full_kernel(weight, patterns, groups)
    dense = _unprojected(expand(kernel, output_basis, groups), basis, groups)
    if offset is not None:
        dense = dense + exact(offset, weight)
    if bias is None or mean is None:
        return cast(dense, weight), bias
    return cast(dense, weight), cast(exact(bias, weight) - response_to_constant(dense, mean, groups), weight)


def factored_form(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    basis: Tensor | None,
    groups: int = 1,
    output_basis: Tensor | None = None,
    patterns: Patterns | None = None,
) -> Factors:
    """Split into a projection without bias and the layer after it, whose bias takes over the centring."""
    kernel = full_kernel(weight, patterns, groups)
    ones = (1,) * (kernel.dim() - 2)
    expansion = None if output_basis is None else cast(output_basis.reshape(*output_basis.shape, *ones), weight)
    if basis is None or mean is None:
        return Factors(None, cast(kernel, weight), bias, expansion)
    projection = grouped(basis, weight, groups).transpose(1, 2).flatten(0, 1)
    centre = response_to_constant(projection, mean, groups)
    shift = response_to_constant(expand(kernel, output_basis, groups), centre, groups)
    return Factors(
        projection=cast(projection.reshape(*projection.shape, *ones), weight),
        weight=cast(kernel, weight),
        bias=None if bias is None else cast(exact(bias, weight) - shift, weight),
        expansion=expansion,
    )


def _unprojected(weight: Tensor, basis: Tensor | None, groups: int) -> Tensor:
    return weight if basis is None else unproject(weight, basis, groups)


def _rows(tensor: Tensor, kept: Tensor | None) -> Tensor:
    return tensor if kept is None else tensor.index_select(0, kept.to(tensor.device))


def _shifted_bias(weight: Tensor, bias: Tensor | None, mean: Tensor, groups: int) -> Tensor:
    # The layer will hold a rounded mean: from that same mean, b~ undoes the centring to the last digit.
    shift = response_to_constant(weight, mean.to(weight.dtype), groups)
    return cast(shift if bias is None else exact(bias, weight) + shift, weight)
