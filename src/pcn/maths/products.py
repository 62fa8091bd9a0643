"""Products of weights (n, m/g, *kernel) with bases and vectors, group by group, in float64.

Letters: m inputs, n outputs, r rank, s output rank, g groups; U the basis (m, r), V the output basis (n, s). Row i of a
basis belongs to group i // (m/g).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pcn.errors import PlanError


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


def response_to_constant(weight: Tensor, constant: Tensor, groups: int) -> Tensor:
    """Return what the layer makes of one vector v that stands at every position: Σ_{m,k} W[n, m, k] v[m]."""
    summed = exact(weight, weight).reshape(*weight.shape[:2], -1).sum(2)
    factors = grouped(summed, weight, groups), grouped(constant, weight, groups)
    return torch.einsum("gnm,gm->gn", *factors).flatten()


def project_outputs(weight: Tensor, output_basis: Tensor, groups: int = 1) -> Tensor:
    """Return Σ_n V[n, s] W[n, ...], group by group: how weights and gradients look before V expands them."""
    factors = grouped(output_basis, weight, groups), grouped(weight, weight, groups)
    return cast(torch.einsum("gns,gn...->gs...", *factors).flatten(0, 1), weight)


def project(weight: Tensor, basis: Tensor, groups: int) -> Tensor:
    """W~[n, r, k] = Σ_m W[n, m, k] U[m, r], group by group."""
    product = torch.einsum("gnm...,gmr->gnr...", grouped(weight, weight, groups), grouped(basis, weight, groups))
    return cast(product.flatten(0, 1), weight)


def unproject(projected: Tensor, basis: Tensor, groups: int) -> Tensor:
    """W[n, m, k] = Σ_r W~[n, r, k] U[m, r], in float64."""
    factors = grouped(projected, projected, groups), grouped(basis, projected, groups)
    return torch.einsum("gnr...,gmr->gnm...", *factors).flatten(0, 1)


def expand(weight: Tensor, output_basis: Tensor | None, groups: int) -> Tensor:
    """W[n, r, k] = Σ_s V[n, s] core[s, r, k], in float64."""
    if output_basis is None:
        return exact(weight, weight)
    factors = grouped(output_basis, weight, groups), grouped(weight, weight, groups)
    return torch.einsum("gns,gsr...->gnr...", *factors).flatten(0, 1)


def outer(outputs: Tensor, inputs: Tensor, like: Tensor, groups: int) -> Tensor:
    """Return outputs[n] inputs[m], group by group, the same at every position of the kernel."""
    product = grouped(outputs, like, groups)[:, :, None] * grouped(inputs, like, groups)[:, None, :]
    return product.reshape(*like.shape[:2], *[1] * (like.dim() - 2))


def grouped(tensor: Tensor, like: Tensor, groups: int) -> Tensor:
    return exact(tensor, like).reshape(groups, -1, *tensor.shape[1:])


def exact(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor in float64 where ``like`` is; Apple's GPUs know no float64, their work is done on the CPU."""
    return tensor.detach().to("cpu" if like.device.type == "mps" else like.device, torch.float64)


def cast(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.detach().to(like.dtype).to(like.device).contiguous()
