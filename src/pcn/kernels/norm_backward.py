"""The gradients of relu(bn(z) + s) and of its projection: one pass for the sums over rows, one for the rows' own.

Both work the gradient of y out again from that of p, so nothing full-width but z is kept for them. Where something was
added, its gradient is that of bn(z) too: the first pass writes it, the second reads it. So they do where a product with
many directions takes longer than that; what is written lies where the gradient of the rows will.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pcn.kernels import dispatch
from pcn.kernels.norm_gradients_kernel import differentiate
from pcn.kernels.norm_sums_kernel import ADD, LOOK, RECOMPUTE, sum_up
from pcn.kernels.reference import Gradients, Norm


def norm_project_backward(
    d_projected: Tensor | None, d_y: Tensor | None, rows: Tensor, added: Tensor | None, y: Tensor | None,
    norm: Norm, basis: Tensor | None, *, training: bool, relu: bool,
) -> Gradients:  # fmt: skip
    """Return what :func:`pcn.kernels.reference.norm_project_backward` does; ``y`` spares it reading ``added``."""
    basis = None if d_projected is None else basis
    given, mask = (y, LOOK) if y is not None else (added, RECOMPUTE if added is None else ADD)
    d_added = rows.new_empty(0) if given is None else torch.empty_like(rows)
    d_rows = torch.empty_like(rows)
    deep = basis is not None and basis.shape[1] >= dispatch.WRITTEN_FROM
    behind = d_added if given is not None else d_rows if deep else None  # where the gradient behind ReLU is written
    new = rows.new_empty if len(rows) else rows.new_zeros  # the sums are written, not added to
    d_bias, d_weight = (new(rows.shape[1], dtype=torch.float32) for _ in range(2))
    if len(rows):
        sum_up(d_projected, d_y, rows, given, norm, basis, behind, d_bias, d_weight, mask=mask, relu=relu)
        if behind is not None:
            d_projected, d_y, basis, relu = None, behind, None, False
        differentiate(d_projected, d_y, rows, norm, basis, d_bias, d_weight, d_rows, training=training, relu=relu)
    return Gradients(d_rows, d_added, d_weight.to(norm.weight.dtype), d_bias.to(norm.bias.dtype))
