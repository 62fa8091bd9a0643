"""What the taps of a convolution read along directions of its input: neighbours in an image look much alike."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pcn.layers import canonical_weight, groups_of
from pcn.nn.functional import pads_of, sides
from pcn.running.example import device_of
from pcn.running.failures import saying_which
from pcn.running.inputs import Change, changed_inputs, over_samples
from pcn.running.untouched import untouched
from pcn.statistics import Statistics
from pcn.statistics.pieces import exact_products

MOST = 2**25  # numbers of patches that are held at once
LITTLE = 0.05  # of the variance that is known: a batch that shows no more says nothing about the others
GIVE = "analyze anew, with such a batch first, or leave patterns of taps out (no kernel_rank; Budget(patterns=False))"

# Layer -> sums of products of what its taps read along each direction, (g*r, taps, taps).
TapMoments = dict[str, Tensor]


class Along(NamedTuple):
    """Directions (m, r) along which a layer's input is looked at, from its mean (m,).

    ``variance`` is that of all that was measured about its own mean, where what is looked at now may be unlike it.
    """

    mean: Tensor
    directions: Tensor
    variance: Tensor | None = None


@torch.no_grad()
def look_at_taps(model: nn.Module, stats: Statistics, along: Mapping[str, Along]) -> TapMoments:
    """Run the model on the first batch that the statistics saw; without one, all is zero.

    So is what a layer reads that varies far less there than in all batches, as the first image of a film may.
    """
    device = device_of(model)
    layers = {name: model.get_submodule(name) for name in along}
    sums = {name: _none_yet(layer, along[name], device) for name, layer in layers.items()}
    if not layers or stats.example is None:
        return sums
    varies = dict.fromkeys(layers, 0.0)

    def watching(name: str) -> Change:
        def look(given: Tensor) -> Tensor:
            x = over_samples(given).detach()
            if x.numel():
                varies[name] = max(varies[name], _variance(x, layers[name]))
                sums[name] += tap_moments(x, layers[name], *along[name][:2]).to(sums[name].device)
            return given

        return look

    example = stats.example.with_inputs(tree_map_only(Tensor, lambda each: each.to(device), stats.example.inputs))
    with ExitStack() as stack:
        stack.enter_context(changed_inputs(model, {name: watching(name) for name in layers}))
        stack.enter_context(untouched(model, stats.mode_without_dropout))
        stack.enter_context(saying_which("the first batch", example, give=GIVE))
        example.call(model)
    for name, (_, _, known) in along.items():
        if known is not None and varies[name] <= LITTLE * float(known):
            sums[name].zero_()
    return sums


def _variance(x: Tensor, layer: Any) -> float:
    """How much what a convolution reads in one call varies, over all its channels."""
    channels = x.movedim(-len(layer.kernel_size) - 1, 0).flatten(1).to(torch.promote_types(x.dtype, torch.float32))
    return float(channels.var(1, correction=0).sum())


def _none_yet(layer: nn.Module, along: Along, device: torch.device | None) -> Tensor:
    taps = canonical_weight(layer).shape[2:].numel()
    directions = groups_of(layer) * along.directions.shape[1]
    return torch.zeros(directions, taps, taps, dtype=torch.float64, device=device)


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
