"""The paper's changes of basis as pure functions on weights of shape (n, m/g, *kernel), computed in float64.

Letters: m inputs, n outputs, r rank, s output rank, g groups; U the basis (m, r), mu the mean (m), V the output
basis (n, s). Row i of a basis belongs to group i // (m/g). Results have the dtype and the device of the weight.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pcn.config import Order
from pcn.errors import PlanError

RTOL = 1e-6  # a direction of a basis that is this much shorter than another holds nothing but rounding


class Projected(NamedTuple):
    """The tensors of one principal component layer, under the names that the layer gives them."""

    weight: Tensor  # (n, r, *kernel), or (g*s, r, *kernel) with an output basis
    bias: Tensor  # (n,)
    mean: Tensor  # (m,)
    basis: Tensor  # (m, r)
    offset_weight: Tensor | None = None  # (n, m/g, *kernel)
    output_basis: Tensor | None = None  # (n, s)


class Factors(NamedTuple):
    """The same function as a chain of plain layers: projection, layer, and expansion with an output basis."""

    projection: Tensor  # (g*r, m/g, 1, ...)
    weight: Tensor  # (n or g*s, r, *kernel)
    bias: Tensor  # (n,), of the last layer in the chain
    expansion: Tensor | None  # (n, s, 1, ...)


def input_transform(
    weight: Tensor, bias: Tensor | None, mean: Tensor, basis: Tensor, groups: int = 1
) -> tuple[Tensor, Tensor]:
    """Return W~ = W U and b~ = b + W mu, the paper's Eq. 3."""
    return _project(weight, basis, groups), _shifted_bias(weight, bias, mean, groups)


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
        projected, shifted = _project(kept_weight, kept_basis, groups), _shifted_bias(weight, bias, mean, groups)
    else:
        raise PlanError("order 'kept_block' needs block_basis, the eigenvectors of the kept block of the covariance")
    return Projected(projected, shifted, _cast(kept_mean, weight), _cast(kept_basis, weight))


def with_output_basis(projected: Projected, output_basis: Tensor, groups: int = 1) -> Projected:
    """Have s outputs trained and expanded by V, orthonormal columns within each group: the weight becomes Vᵀ W~."""
    core = project_outputs(projected.weight, output_basis, groups)
    return projected._replace(weight=core, output_basis=_cast(output_basis, projected.weight))


def project_outputs(weight: Tensor, output_basis: Tensor, groups: int = 1) -> Tensor:
    """Return Σ_n V[n, s] W[n, ...], group by group: how weights and gradients look before V expands them."""
    factors = _grouped(output_basis, weight, groups), _grouped(weight, weight, groups)
    return _cast(torch.einsum("gns,gn...->gs...", *factors).flatten(0, 1), weight)


def dropped_part(weight: Tensor, projected: Projected, groups: int = 1) -> Tensor:
    """Return W - V W~ Uᵀ, what truncated bases lose of the weight."""
    kept = _unproject(_expand(projected.weight, projected.output_basis, groups), projected.basis, groups)
    return _cast(_exact(weight, weight) - kept, weight)


def dense_form(
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    basis: Tensor,
    groups: int = 1,
    offset: Tensor | None = None,
    output_basis: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Multiply everything out: return the weight and bias of the plain layer that computes the same function."""
    dense = _unproject(_expand(weight, output_basis, groups), basis, groups)
    if offset is not None:
        dense = dense + _exact(offset, weight)
    return _cast(dense, weight), _cast(_exact(bias, weight) - response(dense, mean, groups), weight)


def factored_form(
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    basis: Tensor,
    groups: int = 1,
    output_basis: Tensor | None = None,
) -> Factors:
    """Split into a projection without bias and the layer after it, whose bias takes over the centring."""
    ones = (1,) * (weight.dim() - 2)
    projection = _grouped(basis, weight, groups).transpose(1, 2).flatten(0, 1)
    centre = response(projection, mean, groups)
    shift = response(_expand(weight, output_basis, groups), centre, groups)
    return Factors(
        projection=_cast(projection.reshape(*projection.shape, *ones), weight),
        weight=weight.detach(),
        bias=_cast(_exact(bias, weight) - shift, weight),
        expansion=None if output_basis is None else _cast(output_basis.reshape(*output_basis.shape, *ones), weight),
    )


def project_first_moment(
    moment: Tensor,
    bias_moment: Tensor | None,
    mean: Tensor,
    basis: Tensor,
    kept: Tensor | None = None,
    groups: int = 1,
) -> Tensor:
    """Carry a running mean of gradients over: (M_W[:, S] - M_b mu_Sᵀ) U_S, exact as gradients are linear.

    ``mean`` and ``basis`` are those of the new layer. The bias keeps its moment as it is. A layer that had no bias
    counts as if its bias had never had a gradient, which is exact when batch norm in train mode follows.
    """
    selected = _exact(select_inputs(moment, kept, groups), moment)
    if bias_moment is not None:
        selected = selected - _outer(bias_moment, mean, selected, groups)
    return _cast(_project(selected, basis, groups), moment)


def project_second_moment(moment: Tensor, basis: Tensor, kept: Tensor | None = None, groups: int = 1) -> Tensor:
    """Carry a running mean of squared gradients over by U∘U: an estimate, which ignores how gradients correlate."""
    selected = _exact(select_inputs(moment, kept, groups), moment)
    return _cast(_project(selected, _exact(basis, moment) ** 2, groups), moment)


def unproject_first_moment(
    moment: Tensor,
    bias_moment: Tensor,
    mean: Tensor,
    basis: Tensor,
    groups: int = 1,
    output_basis: Tensor | None = None,
) -> Tensor:
    """Carry a running mean of gradients back: V M U⁺ + M_b muᵀ, zero in directions for which none were gathered."""
    back = torch.linalg.pinv(_grouped(basis, moment, groups), rtol=RTOL)
    whole = _unproject(_expand(moment, output_basis, groups), back.mT.flatten(0, 1), groups)
    return _cast(whole + _outer(bias_moment, mean, whole, groups), moment)


def select_inputs(weight: Tensor, kept: Tensor | None, groups: int = 1) -> Tensor:
    """Return the weight (n, m'/g, *kernel) of the kept inputs; each group must keep the same number.

    >>> select_inputs(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 2]), groups=2)
    tensor([[2.],
            [3.]])
    """
    if kept is None:
        return weight
    width = weight.shape[1]
    counts = torch.bincount(kept // width, minlength=groups).tolist()
    if len(set(counts)) != 1:
        raise PlanError(f"a layer of {groups} groups keeps {counts} inputs in them; keep the same number in each")
    local = (kept % width).to(weight.device).reshape(groups, -1)
    parts = zip(weight.chunk(groups), local, strict=True)
    return torch.cat([part.index_select(1, index) for part, index in parts])


def _exact(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor in float64 where ``like`` is; Apple's GPUs know no float64, their work is done on the CPU."""
    return tensor.detach().to("cpu" if like.device.type == "mps" else like.device, torch.float64)


def _cast(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.detach().to(like.dtype).to(like.device).contiguous()


def _grouped(tensor: Tensor, like: Tensor, groups: int) -> Tensor:
    return _exact(tensor, like).reshape(groups, -1, *tensor.shape[1:])


def _rows(tensor: Tensor, kept: Tensor | None) -> Tensor:
    return tensor if kept is None else tensor.index_select(0, kept.to(tensor.device))


def _project(weight: Tensor, basis: Tensor, groups: int) -> Tensor:
    """W~[n, r, k] = Σ_m W[n, m, k] U[m, r], group by group."""
    product = torch.einsum("gnm...,gmr->gnr...", _grouped(weight, weight, groups), _grouped(basis, weight, groups))
    return _cast(product.flatten(0, 1), weight)


def _unproject(projected: Tensor, basis: Tensor, groups: int) -> Tensor:
    """W[n, m, k] = Σ_r W~[n, r, k] U[m, r], in float64."""
    factors = _grouped(projected, projected, groups), _grouped(basis, projected, groups)
    return torch.einsum("gnr...,gmr->gnm...", *factors).flatten(0, 1)


def _outer(outputs: Tensor, inputs: Tensor, like: Tensor, groups: int) -> Tensor:
    """Return outputs[n] inputs[m], group by group, the same at every position of the kernel."""
    product = _grouped(outputs, like, groups)[:, :, None] * _grouped(inputs, like, groups)[:, None, :]
    return product.reshape(*like.shape[:2], *[1] * (like.dim() - 2))


def _expand(weight: Tensor, output_basis: Tensor | None, groups: int) -> Tensor:
    """W[n, r, k] = Σ_s V[n, s] core[s, r, k], in float64."""
    if output_basis is None:
        return _exact(weight, weight)
    factors = _grouped(output_basis, weight, groups), _grouped(weight, weight, groups)
    return torch.einsum("gns,gsr...->gnr...", *factors).flatten(0, 1)


def response(weight: Tensor, constant: Tensor, groups: int) -> Tensor:
    """Return what the layer makes of one vector v that stands at every position: Σ_{m,k} W[n, m, k] v[m]."""
    summed = _exact(weight, weight).reshape(*weight.shape[:2], -1).sum(2)
    factors = _grouped(summed, weight, groups), _grouped(constant, weight, groups)
    return torch.einsum("gnm,gm->gn", *factors).flatten()


def _shifted_bias(weight: Tensor, bias: Tensor | None, mean: Tensor, groups: int) -> Tensor:
    # The layer will hold a rounded mean: from that same mean, b~ undoes the centring to the last digit.
    shift = response(weight, mean.to(weight.dtype), groups)
    return _cast(shift if bias is None else _exact(bias, weight) + shift, weight)
