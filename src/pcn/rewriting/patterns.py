"""Patterns of a convolution's taps along its new directions: neighbours in an image look much alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pcn.errors import StatisticsError
from pcn.layers import groups_of
from pcn.nn.functional import pads_of, sides
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.rewriting import directions
from pcn.rewriting.bases import Bases, Basis
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

    def watching(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = over_samples(args[0] if args else next(iter(kwargs.values())))
            if x.numel():
                found = tap_moments(x.detach(), module, bases[name].mean, bases[name].directions)
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


def with_patterns(plan: Plan, bases: Bases, moments: TapMoments) -> Bases:
    """Add the patterns that vary most, along every direction, to the bases of the layers that want some."""
    return bases | {layer.name: _patterned(bases[layer.name], layer, moments[layer.name]) for layer in patterned(plan)}


def _patterned(basis: Basis, layer: LayerPlan, moments: Tensor) -> Basis:
    assert layer.kernel_rank is not None
    if not bool(moments.any()):
        raise StatisticsError(
            f"{layer.name!r} read nothing but its mean in the first batch that the statistics saw, on which patterns "
            f"of taps (kernel_rank) are measured: {GIVE}"
        )
    values, vectors = eigen.full(moments)
    leading = vectors[..., : layer.kernel_rank]
    kept = Directions(leading, leading, values[..., : layer.kernel_rank])
    found = directions.preconditioned(kept, layer.precondition)
    shape = (len(moments), layer.kernel_rank, *layer.kernel)
    of_tap = values.mean(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    return replace(
        basis,
        patterns=found.along.mT.reshape(shape),
        pattern_dual=found.back.mT.reshape(shape),
        pattern_variances=found.variances / of_tap,
    )


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
