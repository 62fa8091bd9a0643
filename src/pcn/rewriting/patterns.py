"""Patterns of a convolution's taps along its new directions: neighbours in an image look much alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pcn.errors import StatisticsError
from pcn.layers import by_group, groups_of
from pcn.maths.products import project
from pcn.nn.functional import pads_of, sides
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.rewriting import directions
from pcn.rewriting.bases import Bases, Basis, kept_inputs, weight_of
from pcn.rewriting.directions import Directions
from pcn.running.example import device_of
from pcn.running.failures import saying_which
from pcn.running.inputs import over_samples
from pcn.running.untouched import untouched
from pcn.statistics import Statistics, eigen
from pcn.statistics.pieces import exact_products

MOST = 2**25  # numbers of patches that are held at once
GIVE = "analyze anew, with such a batch first, or leave kernel_rank out"

# Layer -> sums of products of what its taps read along each direction, (g*r, taps, taps).
TapMoments = dict[str, Tensor]


def patterned(plan: Plan) -> list[LayerPlan]:
    """The layers that read their directions in patterns of taps."""
    return [layer for layer in plan.transformed if layer.kernel_rank is not None]


@torch.no_grad()
def measure_taps(plan: Plan, bases: Bases, model: nn.Module, stats: Statistics) -> TapMoments:
    """Run the model, as it is before the plan, on the first batch that the statistics saw; without one, all is zero."""
    layers = {layer.name: layer for layer in patterned(plan)}
    device = device_of(model)
    sums = {name: _none_yet(layer, device) for name, layer in layers.items()}
    if not layers or stats.example is None:
        return sums

    along = {name: _left(plan, layer, bases[name].directions) for name, layer in layers.items()}

    def watching(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = over_samples(args[0] if args else next(iter(kwargs.values())))
            if x.numel():
                found = tap_moments(x.detach(), module, bases[name].mean, along[name])
                sums[name] += found.to(sums[name].device)

        return hook

    modules = {name: model.get_submodule(name) for name in layers}
    hooks = [each.register_forward_pre_hook(watching(name), with_kwargs=True) for name, each in modules.items()]
    example = stats.example.with_inputs(tree_map_only(Tensor, lambda each: each.to(device), stats.example.inputs))
    try:
        with untouched(model, stats.mode_without_dropout), saying_which("the first batch", example, give=GIVE):
            example.call(model)
    finally:
        for hook in hooks:
            hook.remove()
    return sums


def with_patterns(plan: Plan, bases: Bases, moments: TapMoments, model: nn.Module) -> Bases:
    """Add patterns of taps, of which the layers make most, to the bases of those that want some."""
    return bases | {
        layer.name: _patterned(plan, layer, bases[layer.name], moments[layer.name], weight_of(plan, layer, model))
        for layer in patterned(plan)
    }


def _patterned(plan: Plan, layer: LayerPlan, basis: Basis, moments: Tensor, weight: Tensor) -> Basis:
    assert layer.kernel_rank is not None
    assert layer.rank is not None
    if not bool(moments.any()):
        raise StatisticsError(
            f"{layer.name!r} read nothing but its mean in the first batch that the statistics saw, on which patterns "
            f"of taps (kernel_rank) are measured: {GIVE}"
        )
    values, vectors = eigen.full(moments.unflatten(0, (layer.groups, -1)))
    kernels = _kernels(plan, layer, basis, weight.to(vectors))
    responses = values.clamp_min(0) * torch.einsum("gnrk,grkp->gnrp", kernels, vectors).square().sum(1)
    chosen = choose(responses, layer.rank * layer.kernel_rank)
    of_direction = chosen.of[:2]
    along = vectors.mT[chosen.of].unflatten(0, (layer.groups, -1)).mT
    # A direction and its patterns are preconditioned as one: what its length does for it already is taken off.
    rows = basis.directions.to(values).unflatten(0, (layer.groups, -1))
    lengths = rows.norm(dim=1)[of_direction].view(layer.groups, 1, -1)
    variances = values[chosen.of].view_as(lengths) / lengths**2
    found = directions.preconditioned(Directions(along, along, variances.squeeze(1)), layer.precondition)
    of_tap = values.mean(-1).clamp_min(torch.finfo(values.dtype).tiny)[of_direction]
    shape = (-1, *layer.kernel)
    return replace(
        basis,
        patterns=(found.along / lengths).mT.reshape(shape),
        pattern_mask=chosen.mask,
        pattern_dual=(found.back * lengths).mT.reshape(shape),
        pattern_variances=found.variances.flatten() / of_tap,
    )


def _kernels(plan: Plan, layer: LayerPlan, basis: Basis, weight: Tensor) -> Tensor:
    """The kernels (g, n, r, taps) along the directions, every tap by itself."""
    back = basis.directions if basis.dual is None else basis.dual
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


def _none_yet(layer: LayerPlan, device: torch.device | None) -> Tensor:
    assert layer.rank is not None
    return torch.zeros(layer.groups * layer.rank, layer.taps, layer.taps, dtype=torch.float64, device=device)


def tap_moments(x: Tensor, layer: Any, mean: Tensor, along: Tensor) -> Tensor:
    """Sum up the products (g*r, taps, taps) of what the taps of a stock convolution read along directions (m, r)."""
    groups, rank, spatial = groups_of(layer), along.shape[1], len(layer.kernel_size)
    taps = torch.Size(layer.kernel_size).numel()
    x = x if x.dim() > spatial + 1 else x.unsqueeze(0)
    total = torch.zeros(groups * rank, taps, taps, dtype=torch.float64, device=x.device)
    each = max(1, MOST // (groups * rank * taps * x[0, 0].numel()))
    dtype = torch.promote_types(x.dtype, torch.float32)
    along, mean = (tensor.to(x.device, dtype) for tensor in (along.reshape(groups, -1, rank), mean))
    centre = torch.einsum("gm,gmr->gr", mean.view(groups, -1), along).view(-1, *[1] * spatial)
    with exact_products(x.device):
        for part in x.split(each):
            rows = (part.to(dtype) - mean.view(-1, *[1] * spatial)).unflatten(1, (groups, -1))
            read = torch.einsum("ngm...,gmr->ngr...", rows, along).flatten(1, 2)
            patches = _patches(_padded(read, centre, layer), layer).movedim(0, 1).flatten(1, -2)
            total += torch.bmm(patches.mT, patches).double()
    return total


def _padded(read: Tensor, centre: Tensor, layer: Any) -> Tensor:
    """What stands around images: zeros there are -c along directions, as what is read is centred.

    How many is said by the layer's padding as it is now, which somebody may have set after it was made.
    """
    if layer.padding_mode != "zeros":
        return F.pad(read, list(layer._reversed_padding_repeated_twice), mode=layer.padding_mode)
    pads = sides(pads_of(layer.kernel_size, layer.dilation, layer.padding))
    inside = F.pad(read.new_ones(1, 1, *read.shape[2:]), pads)
    return F.pad(read, pads) - (1 - inside) * centre


def _patches(images: Tensor, layer: Any) -> Tensor:
    """What a convolution sees at every position, (n, c, *positions, taps)."""
    moves = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    for dim, (size, stride, dilation) in enumerate(moves, start=2):
        images = images.unfold(dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return images.flatten(2 + len(layer.kernel_size))
