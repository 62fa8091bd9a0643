"""The kernels as operators that autograd, torch.compile, torch.export, autocast and FLOP counting understand.

They work on rows: (positions, channels). :mod:`pcn.kernels.reference` says what each computes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.utils.flop_counter import register_flop_formula

from pcn.kernels import reference
from pcn.kernels.dispatch import WRITTEN_FROM, uses_kernel
from pcn.kernels.inductor import fake_of
from pcn.kernels.reference import Norm, wide_dtype


@custom_op("pcn::batch_moments", mutates_args=(), schema="(Tensor rows) -> (Tensor, Tensor)")
def batch_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of every column; no gradient flows through them.

    >>> batch_moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    (tensor([2., 5.]), tensor([1., 0.]))
    """
    if not uses_kernel(rows):
        return reference.batch_moments(rows)
    from pcn.kernels.moments_kernel import moments

    return moments(rows.contiguous())[1:]


@custom_op("pcn::add_moments", mutates_args=(), schema="(Tensor rows, Tensor other) -> (Tensor, Tensor, Tensor)")
def add_moments(rows: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of two tensors of one dtype and the moments of its columns, read in the same pass."""
    rows, other = rows.contiguous(), other.contiguous()
    if not uses_kernel(rows):
        return reference.add_moments(rows, other)
    from pcn.kernels.moments_kernel import moments

    return moments(rows, other)


NORM_PROJECT = (
    "(Tensor rows, Tensor? added, Tensor weight, Tensor bias, Tensor mean, Tensor inverse_std, Tensor? basis, "
    "Tensor? centre, bool relu, bool emit, bool training, bool mask=False) -> (Tensor, Tensor)"
)


@custom_op("pcn::norm_project", mutates_args=(), schema=NORM_PROJECT)
def norm_project(
    rows: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse_std: Tensor,
    basis: Tensor | None,
    centre: Tensor | None,
    relu: bool,
    emit: bool,
    training: bool,
    mask: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return y = relu(bn(rows) + added), empty unless ``emit``, and (y - centre) basis, empty without a basis.

    ``training`` says that mean and inverse_std are the rows' own, so that gradients flow through them. ``mask`` says
    that nobody else keeps y for backward, so that a byte for each of its numbers is kept in its place.
    """
    norm, rows, added = _norm(weight, bias, mean, inverse_std), rows.contiguous(), _dense(added)
    if uses_kernel(rows):
        from pcn.kernels.norm_kernel import norm_project as kernel

        return kernel(rows, added, norm, _dense(basis), _dense(centre), relu=relu, emit=emit)
    y, projected = reference.norm_project(rows, added, norm, basis, centre, relu=relu)
    return y if emit else rows.new_empty(0), rows.new_empty(0) if projected is None else projected


NORM_PROJECT_BACKWARD = (
    "(Tensor? d_projected, Tensor? d_y, Tensor rows, Tensor? added, Tensor? y, Tensor weight, Tensor bias, "
    "Tensor mean, Tensor inverse_std, Tensor? basis, bool relu, bool training) -> (Tensor, Tensor, Tensor, Tensor)"
)


@custom_op("pcn::norm_project_backward", mutates_args=(), schema=NORM_PROJECT_BACKWARD)
def norm_project_backward(
    d_projected: Tensor | None,
    d_y: Tensor | None,
    rows: Tensor,
    added: Tensor | None,
    y: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse_std: Tensor,
    basis: Tensor | None,
    relu: bool,
    training: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of rows, of what was added, and of weight and bias.

    ``y`` may be given for ``added``, or what is positive where it is.
    """
    norm, rows, given = _norm(weight, bias, mean, inverse_std), rows.contiguous(), (_dense(added), _dense(y))
    coming = _dense(d_projected), _dense(d_y)
    if uses_kernel(rows):
        from pcn.kernels.norm_backward import norm_project_backward as kernel

        return kernel(*coming, rows, *given, norm, _dense(basis), relu=relu, training=training)
    return reference.norm_project_backward(*coming, rows, *given, norm, basis, relu=relu, training=training)


@custom_op("pcn::project", mutates_args=(), schema="(Tensor rows, Tensor basis, Tensor? centre) -> Tensor")
def project(rows: Tensor, basis: Tensor, centre: Tensor | None) -> Tensor:
    """Return (rows - centre) basis, in the basis' dtype; centred before anything is rounded."""
    if centre is None or not uses_kernel(rows):  # without a centre it is a plain product
        return reference.project(rows, basis, centre)
    from pcn.kernels.norm_kernel import norm_project as kernel

    rows, basis, centre = rows.contiguous(), basis.contiguous(), centre.contiguous()
    return kernel(rows, None, None, basis, centre, relu=False, emit=False)[1]


def _dense(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _norm(*tensors: Tensor) -> Norm:
    return Norm(*(tensor.contiguous() for tensor in tensors))


@fake_of(batch_moments)
def _(rows: Tensor) -> tuple[Tensor, Tensor]:
    shape, dtype = rows.shape[1:], wide_dtype(rows)
    return rows.new_empty(shape, dtype=dtype), rows.new_empty(shape, dtype=dtype)


@fake_of(add_moments)
def _(rows: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape, dtype = rows.shape[1:], wide_dtype(rows)
    return rows.new_empty(rows.shape), rows.new_empty(shape, dtype=dtype), rows.new_empty(shape, dtype=dtype)


@fake_of(norm_project)
def _(rows: Tensor, added: Any, weight: Any, bias: Any, mean: Any, inverse_std: Any, basis: Any, *rest: Any) -> Any:
    _, _, emit, *_ = rest
    projected = rows.new_empty(0) if basis is None else basis.new_empty(rows.shape[0], basis.shape[1])
    return rows.new_empty(rows.shape if emit else 0), projected


@fake_of(norm_project_backward)
def _(d_projected: Any, d_y: Any, rows: Tensor, added: Any, y: Any, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
    has_added = added is not None or y is not None
    return (
        rows.new_empty(rows.shape),
        rows.new_empty(rows.shape if has_added else 0),
        torch.empty_like(weight),
        torch.empty_like(bias),
    )


@fake_of(project)
def _(rows: Tensor, basis: Tensor, centre: Tensor | None) -> Tensor:
    return basis.new_empty(rows.shape[0], basis.shape[1])


def _save_norm_project(ctx: Any, inputs: Any, output: Any) -> None:
    rows, added, weight, bias, mean, inverse_std, basis, _, relu, emit, training, mask = inputs
    # Where y is kept by others anyway, it says where ReLU let through, and what was added need not be.
    y = output[0] if added is not None and emit and relu else None
    if mask and y is not None:
        y = (y <= 0).logical_not().to(torch.uint8)  # a NaN is let through
    ctx.save_for_backward(rows, None if y is not None else added, y, weight, bias, mean, inverse_std, basis)
    ctx.relu, ctx.training, ctx.has_added = relu, training, added is not None
    ctx.set_materialize_grads(False)


def _norm_project_backward(ctx: Any, d_y: Tensor | None, d_projected: Tensor | None) -> Any:
    rows, added, y, *norm, basis = ctx.saved_tensors
    d_projected = None if basis is None else d_projected
    d_y = None if d_y is None or d_y.numel() != rows.numel() else d_y
    if d_projected is None and d_y is None:
        return (None,) * 12
    given = d_projected, d_y, rows, added, y, *norm, basis, ctx.relu, ctx.training
    d_rows, d_added, d_weight, d_bias = torch.ops.pcn.norm_project_backward(*given)
    return d_rows, d_added if ctx.has_added else None, d_weight, d_bias, *[None] * 8


def _save_project(ctx: Any, inputs: Any, output: Any) -> None:
    rows, basis, _ = inputs
    ctx.save_for_backward(basis)
    ctx.dtype = rows.dtype


def _project_backward(ctx: Any, d_projected: Tensor) -> Any:
    (basis,) = ctx.saved_tensors
    return (d_projected @ basis.T).to(ctx.dtype), None, None


norm_project.register_autograd(_norm_project_backward, setup_context=_save_norm_project)
project.register_autograd(_project_backward, setup_context=_save_project)
add_moments.register_autograd(lambda ctx, d_total, d_mean, d_variance: (d_total, d_total))


@register_flop_formula(torch.ops.pcn.norm_project)
def _norm_project_flops(
    rows: Any, added: Any, w: Any, b: Any, m: Any, s: Any, basis: Any, *rest: Any, **kw: Any
) -> int:
    return 0 if basis is None else int(2 * rows[0] * basis[0] * basis[1])


@register_flop_formula(torch.ops.pcn.norm_project_backward)
def _norm_project_backward_flops(d_projected: Any, *rest: Any, **keywords: Any) -> int:
    rows, basis = rest[1], rest[8]
    if d_projected is None or basis is None:
        return 0
    written = rest[2] is not None or rest[3] is not None or basis[1] >= WRITTEN_FROM  # or the product is made again
    return int(2 * (1 if written else 2) * rows[0] * basis[0] * basis[1])


@register_flop_formula(torch.ops.pcn.project)
def _project_flops(rows: Any, basis: Any, *rest: Any, **keywords: Any) -> int:
    return int(2 * rows[0] * basis[0] * basis[1])


LIBRARY = torch.library.Library("pcn", "IMPL")


def autocast_(name: str, *factors: int) -> None:
    """Have an operator multiply in autocast's dtype: the arguments at these positions are cast, unless one is fp64."""
    operator = getattr(torch.ops.pcn, name).default

    def register(device: str) -> None:
        def rule(*arguments: Any) -> Any:
            given = list(arguments)
            cast = {at: given[at] for at in factors if given[at] is not None}
            with torch.autocast(device, enabled=False):
                if all(factor.dtype != torch.float64 for factor in cast.values()):
                    dtype = torch.get_autocast_dtype(device)
                    given = [cast[at].to(dtype) if at in cast else each for at, each in enumerate(given)]
                return operator(*given)

        LIBRARY.impl(name, rule, f"Autocast{device.upper()}")

    register("cpu")
    register("cuda")


autocast_("norm_project", 6)  # the basis; the norm's tensors stay wide
autocast_("project", 1)
