"""Patterns of a convolution's taps along its new directions, and which of them a layer keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pcn.errors import StatisticsError
from pcn.layers import by_group
from pcn.maths.products import project
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.rewriting import directions
from pcn.rewriting.bases import Bases, Basis, kept_inputs, weight_of
from pcn.rewriting.directions import Directions
from pcn.rewriting.taps import GIVE, Along, TapMoments, look_at_taps
from pcn.statistics import Statistics, eigen


def patterned(plan: Plan) -> list[LayerPlan]:
    """The layers that read their directions in patterns of taps."""
    return [layer for layer in plan.transformed if layer.kernel_rank is not None]


def measure_taps(plan: Plan, bases: Bases, model: nn.Module, stats: Statistics) -> TapMoments:
    """Look, along the bases of a plan, at what the taps of its layers read; the model is as it is before the plan."""
    along = {}
    for layer in patterned(plan):
        basis = bases[layer.name]
        assert basis.directions is not None  # patterns are of directions
        along[layer.name] = Along(basis.mean, _left(plan, layer, basis.directions))
    return look_at_taps(model, stats, along)


def with_patterns(plan: Plan, bases: Bases, moments: TapMoments, model: nn.Module) -> Bases:
    """Add patterns of taps, of which the layers make most, to the bases of those that want some."""
    return bases | {
        layer.name: _patterned(plan, layer, bases[layer.name], moments[layer.name], weight_of(plan, layer, model))
        for layer in patterned(plan)
    }


def _patterned(plan: Plan, layer: LayerPlan, basis: Basis, moments: Tensor, weight: Tensor) -> Basis:
    assert layer.kernel_rank is not None
    assert layer.rank is not None
    assert basis.directions is not None
    assert basis.variances is not None
    values, vectors, responses = patterns_of(layer.name, moments, _kernels(plan, layer, basis, weight.to(moments)))
    chosen = choose(responses, layer.rank * layer.kernel_rank)
    of_direction = chosen.of[:2]
    along = vectors.mT[chosen.of].unflatten(0, (layer.groups, -1)).mT
    # A direction and its patterns are preconditioned as one: what its length does for it already is taken off.
    rows = basis.directions.to(values).unflatten(0, (layer.groups, -1))
    lengths = rows.norm(dim=1)[of_direction].view(layer.groups, 1, -1)
    variances = values[chosen.of].view_as(lengths) / lengths**2
    found = directions.preconditioned(Directions(along, along, variances.squeeze(1)), layer.precondition)
    of_tap = values.mean(-1).clamp_min(torch.finfo(values.dtype).tiny)[of_direction]
    relative = found.variances.flatten() / of_tap
    scale = basis.scale
    if scale is not None:  # by what every tap of a direction would read, and what its patterns do
        of_directions = basis.variances.to(relative).clamp_min(0)
        read = relative.view(layer.groups, -1) * of_directions[of_direction].view(layer.groups, -1)
        by_taps = directions.size_for_adam(read.clamp_min(0).sqrt(), layer.taps * of_directions.sqrt())
        scale = scale.to(relative) * by_taps
    shape = (-1, *layer.kernel)
    return replace(
        basis,
        patterns=(found.along / lengths).mT.reshape(shape),
        pattern_mask=chosen.mask,
        pattern_dual=(found.back * lengths).mT.reshape(shape),
        pattern_variances=relative,
        scale=scale,
    )


def patterns_of(name: str, moments: Tensor, kernels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The patterns of a layer's taps along each direction: variances, vectors, and what the layer makes of them.

    ``kernels`` are (g, n, r, taps), ``moments`` (g*r, taps, taps). Vectors are (g, r, taps, taps), one in each column,
    the others (g, r, taps).
    """
    if not bool(moments.any()):
        raise StatisticsError(
            f"{name!r}: patterns of taps (kernel_rank) are measured on the first batch that the statistics saw, and it "
            f"read little but its mean there, or they hold none: {GIVE}"
        )
    values, vectors = eigen.full(moments.unflatten(0, (len(kernels), -1)))
    responses = values.clamp_min(0) * torch.einsum("gnrk,grkp->gnrp", kernels.to(vectors), vectors).square().sum(1)
    return values, vectors, responses


def _kernels(plan: Plan, layer: LayerPlan, basis: Basis, weight: Tensor) -> Tensor:
    """The kernels (g, n, r, taps) along the directions, every tap by itself."""
    back = basis.directions if basis.dual is None else basis.dual
    assert back is not None
    if layer.order == "truncate_first":  # the other orders have the mean of what is lost in its place
        back = _left(plan, layer, back)
    return by_group(project(weight, back.to(weight), layer.groups), layer.groups)


def _left(plan: Plan, layer: LayerPlan, rows: Tensor) -> Tensor:
    """Rows (m, r) with zeros for the inputs that the layer loses."""
    kept = kept_inputs(plan, layer)
    if kept is None:
        return rows
    kept = kept.to(rows.device)
    return torch.zeros_like(rows).index_copy(0, kept, rows[kept])


class Chosen(NamedTuple):
    """Patterns of taps that were chosen: where they stand among all, direction by direction, and how many each has."""

    of: tuple[Tensor, Tensor, Tensor]  # group, direction and number among the direction's, each (g*p,)
    mask: Tensor  # (g*r, taps), as pcn.maths.patterns has it


def choose(worth: Tensor, count: int) -> Chosen:
    """Choose so many patterns in every group by their worth (g, r, taps), at least one for each direction.

    >>> choose(torch.tensor([[[5.0, 4.0, 1.0], [0.5, 3.0, 0.1]]]), 4).mask
    tensor([[1., 1., 1.],
            [1., 0., 0.]])
    """
    groups, rank, taps = worth.shape
    ranked, order = worth.sort(dim=2, descending=True, stable=True)
    ranked[:, :, 0] = torch.inf
    first = ranked.flatten(1).argsort(dim=1, descending=True, stable=True)[:, :count]
    taken = torch.zeros(groups, rank * taps, dtype=torch.bool, device=worth.device).scatter_(1, first, True)
    group, direction, place = taken.view(groups, rank, taps).nonzero(as_tuple=True)
    return Chosen((group, direction, order[group, direction, place]), taken.view(groups * rank, taps).to(worth.dtype))
