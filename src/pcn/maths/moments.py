"""Gradients, and what optimizers keep of them, in a layer's new coordinates and back; letters as in transform.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pcn.maths.patterns import Patterns, full_kernel, leading_back, owners
from pcn.maths.products import cast, exact, expand, grouped, outer, project, select_inputs, unproject

RTOL = 1e-6  # a direction of a basis that is this much shorter than another holds nothing but rounding
LEAST = 0.5  # of what gradients that do not go together would have gathered: differences of moments are not sure
FLOOR = 1e-3  # of the mean variance, added to each
TINY = 1e-300


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


def along_patterns(moment: Tensor, variances: Tensor, patterns: Patterns, groups: int = 1) -> Tensor:
    """Estimate squared gradients (n, p) by coordinates along patterns of taps, from those by taps, (n, r, *kernel).

    ``variances`` (g*p,) are the coordinates' own, relative to their direction's at a tap: as there, a gradient that
    does not go with what is read gathers E[d²] times the variance.
    """
    of_tap = grouped(moment, moment, groups).flatten(3).mean(3)
    own = of_tap.gather(2, owners(patterns, groups).to(of_tap.device).unsqueeze(1).expand(-1, of_tap.shape[1], -1))
    return cast((own * grouped(variances, moment, groups).unsqueeze(1)).flatten(0, 1), moment)


class Padding(NamedTuple):
    """Zeros that a convolution reads around its images, where they stand for -c along its coordinates."""

    centre: Tensor  # c = Uᵀmu, (g, r)
    inside: Tensor  # (*kernel), the share of reads, tap by tap, that fall on the image


def second_moment_by_variances(
    moment: Tensor,
    bias_moment: Tensor | None,
    mean: Tensor,
    variances: Tensor,
    total: Tensor,
    *,
    centred: bool,
    padding: Padding | None = None,
    within: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Estimate a running mean of squared gradients in coordinates z of given ``variances`` (g, r).

    Where an output's gradient d does not go with its inputs x, a weight's squared gradient is E[d²] E[x_m²] on average,
    and along z_j, which is centred, E[d²] var(z_j). So E[d²] follows from what all inputs of an output have gathered:
    Σ_m v[n, m] = E[d²] Σ_m var(x_m) + v_b[n] Σ_m mu_m², where the bias's own moment v_b tells what the mean brought in.
    ``mean`` (m,) and ``total`` (g,), the variance of all inputs, are those of the old layer. Without a bias, the mean
    brought nothing in where the gradients of an output sum up to zero (``centred``: a batch norm follows), and
    otherwise as much as gradients that do not go together would. ``padding`` adds E[d²] c_j² for the reads beside the
    image, of which the old weight has gathered nothing.

    Where the new layer reads its input as it is, ``within`` (g, r) is Uᵀmu, and the ``variances`` are E[z²]: what the
    mean brought in stays, along z_j as often as z_j reads it. It is returned apart, and is to be added.
    """
    groups = len(total)
    summed = grouped(moment, moment, groups).sum(2)  # (g, n/g, *kernel)
    one_each = (groups, *[1] * (summed.dim() - 1))
    of_mean = grouped(mean, moment, groups).square().sum(1).reshape(one_each)
    of_all = exact(total, moment).reshape(one_each)
    unrelated = summed * of_all / (of_all + of_mean).clamp_min(TINY)
    if bias_moment is not None:
        of_bias = grouped(bias_moment, moment, groups).reshape(*summed.shape[:2], *[1] * (summed.dim() - 2))
        scatter = torch.maximum(summed - of_bias * of_mean, LEAST * unrelated)
    else:
        scatter = summed if centred else unrelated
    spread = _spread(exact(variances, moment), within)
    along = spread.reshape(groups, 1, -1, *[1] * (summed.dim() - 2))
    each = scatter / of_all.clamp_min(TINY)  # E[d²], times the share of reads on the image
    found = each.unsqueeze(2) * along
    if padding is not None:
        inside = exact(padding.inside, moment)
        squares = exact(padding.centre, moment).square().reshape(along.shape)
        of_gradient = each.flatten(2).sum(2).reshape(*summed.shape[:2], *[1] * inside.dim()) / inside.sum()
        found = found + (of_gradient * (1 - inside)).unsqueeze(2) * squares
    if within is None:
        return cast(found.flatten(0, 1), moment), None
    brought = ((summed - scatter) / of_mean.clamp_min(TINY)).unsqueeze(2)
    brought = brought * exact(within, moment).square().reshape(along.shape)
    return cast(found.flatten(0, 1), moment), cast(brought.flatten(0, 1), moment)


def _spread(variances: Tensor, within: Tensor | None) -> Tensor:
    """How much coordinates (g, r) vary about their mean; no step is divided by what only few samples say is nothing."""
    spread = variances if within is None else (variances - exact(within, variances).square()).clamp_min(0)
    return spread + FLOOR * spread.mean(1, keepdim=True)


def patterns_told_apart(
    relative: Tensor, variances: Tensor, within: Tensor, patterns: Patterns, groups: int = 1
) -> tuple[Tensor, Tensor]:
    """Split E[c²] of coordinates along patterns of taps, (g*p,) and ``relative`` to E[z²] = ``variances`` at a tap.

    Returned are how much they vary, relative to how much their direction does, and the square of their mean, relative
    to that of their direction, ``within``: it stands at every tap. A batch's own mean is not quite that of all, so they
    are taken to vary no less than where taps do not go together.
    """
    every = exact(patterns.taps, relative).flatten(1)
    of_mean = grouped(every.sum(1).square(), relative, groups)  # (g, p)
    squares, whole = exact(within, relative).square(), exact(variances, relative)
    owner = owners(patterns, groups).to(relative.device)
    squares, whole, spread = (each.gather(1, owner) for each in (squares, whole, _spread(whole, within)))
    varies = grouped(relative, relative, groups) * whole - squares * of_mean
    least = spread * of_mean / every.shape[1]
    return (torch.maximum(varies, least) / spread.clamp_min(TINY)).flatten(), of_mean.flatten()


def reads_inside(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Tensor:
    """Return (*kernel): how much of what each tap of a convolution reads lies on images of this size.

    >>> reads_inside([4], [3], [1], [(1, 1)], [1])
    tensor([0.7500, 1.0000, 0.7500], dtype=torch.float64)
    """
    inside = torch.ones((), dtype=torch.float64)
    for length, taps, step, (before, after), apart in zip(size, kernel, stride, pads, dilation, strict=True):
        places = torch.arange(0, length + before + after - apart * (taps - 1), step)
        read = places + apart * torch.arange(taps)[:, None] - before
        inside = inside.unsqueeze(-1) * ((read >= 0) & (read < length)).double().mean(1)
    return inside


def unproject_first_moment(
    moment: Tensor,
    bias_moment: Tensor | None,
    mean: Tensor | None,
    basis: Tensor | None,
    groups: int = 1,
    output_basis: Tensor | None = None,
    patterns: Patterns | None = None,
) -> Tensor:
    """Carry a running mean of gradients back: V M U⁺ + M_b muᵀ, zero in directions for which none were gathered."""
    if basis is None:
        return cast(expand(moment, output_basis, groups), moment)
    if patterns is not None:
        moment = cast(full_kernel(moment, leading_back(patterns, groups), groups), moment)
    back = torch.linalg.pinv(grouped(basis, moment, groups), rtol=RTOL)
    whole = unproject(expand(moment, output_basis, groups), back.mT.flatten(0, 1), groups)
    if bias_moment is not None and mean is not None:
        whole = whole + outer(bias_moment, mean, whole, groups)
    return cast(whole, moment)
