"""Gradients, and what optimizers keep of them, in a layer's new coordinates and back; letters as in transform.py."""

from __future__ import annotations

import torch
from torch import Tensor

from pcn.maths.products import cast, exact, expand, grouped, outer, project, select_inputs, unproject

RTOL = 1e-6  # a direction of a basis that is this much shorter than another holds nothing but rounding


def project_first_moment(
    moment: Tensor,
    bias_moment: Tensor | None,
    mean: Tensor,
    basis: Tensor,
    kept: Tensor | None = None,
    groups: int = 1,
) -> Tensor:
    """Carry a running mean of gradients over: (M_W[:, S] - M_b mu_Sᵀ) U_S, exact as gradients are linear.

    What weight decay has put into the mean is carried as if it were a gradient, which with preconditioned directions it
    is not quite: it is as many times too large as their scale squared, once, and fades with the mean.

    ``mean`` and ``basis`` are those of the new layer. The bias keeps its moment as it is. A layer that had no bias
    counts as if its bias had never had a gradient, which is exact when batch norm in train mode follows.
    """
    selected = exact(select_inputs(moment, kept, groups), moment)
    if bias_moment is not None:
        selected = selected - outer(bias_moment, mean, selected, groups)
    return cast(project(selected, basis, groups), moment)


def project_second_moment(moment: Tensor, basis: Tensor, kept: Tensor | None = None, groups: int = 1) -> Tensor:
    """Carry a running mean of squared gradients over by U∘U: an estimate, which ignores how gradients correlate."""
    selected = exact(select_inputs(moment, kept, groups), moment)
    return cast(project(selected, exact(basis, moment) ** 2, groups), moment)


def unproject_first_moment(
    moment: Tensor,
    bias_moment: Tensor,
    mean: Tensor,
    basis: Tensor,
    groups: int = 1,
    output_basis: Tensor | None = None,
) -> Tensor:
    """Carry a running mean of gradients back: V M U⁺ + M_b muᵀ, zero in directions for which none were gathered."""
    back = torch.linalg.pinv(grouped(basis, moment, groups), rtol=RTOL)
    whole = unproject(expand(moment, output_basis, groups), back.mT.flatten(0, 1), groups)
    return cast(whole + outer(bias_moment, mean, whole, groups), moment)
