"""How the taps of a convolution go together along its new directions: neighbours in an image look much alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcn.errors import StatisticsError
from pcn.layers import groups_of
from pcn.running.inputs import over_samples
from pcn.running.untouched import untouched
from pcn.statistics import Statistics
from pcn.statistics.pieces import exact_products

MOST = 2**25  # numbers of patches that are held at once

Coordinates = tuple[Tensor, Tensor]  # the mean (m,) and the directions (m, r) of a layer's input


@torch.no_grad()
def find_patterns(model: nn.Module, stats: Statistics, layers: Mapping[str, Coordinates]) -> dict[str, Tensor]:
    """Return the second moments (g*r, taps, taps) of what the taps read along every direction, in float64.

    They are measured on the statistics' own example, a batch, with everything in its old coordinates.
    """
    if not layers:
        return {}
    if stats.example is None:
        raise StatisticsError(
            "patterns of taps (kernel_rank) are measured on a batch, and these statistics hold none: analyze anew, or "
            "load them from a file that has one"
        )
    sums: dict[str, Tensor] = {}

    def watching(name: str, module: nn.Module) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = over_samples(args[0] if args else next(iter(kwargs.values())))
            found = tap_moments(x.detach(), module, *layers[name])
            sums[name] = sums[name] + found if name in sums else found

        return hook

    modules = {name: model.get_submodule(name) for name in layers}
    hooks = [each.register_forward_pre_hook(watching(n, each), with_kwargs=True) for n, each in modules.items()]
    try:
        with untouched(model, stats.mode_without_dropout):
            stats.example.call(model)
    finally:
        for hook in hooks:
            hook.remove()
    missing = next((name for name in layers if name not in sums), None)
    if missing is not None:
        raise StatisticsError(f"{missing!r} was not called with the batch that its patterns of taps are measured on")
    return sums


def tap_moments(x: Tensor, layer: Any, mean: Tensor, directions: Tensor) -> Tensor:
    """Sum up the products (g*r, taps, taps) of what the taps of a convolution read along the directions."""
    groups, taps = groups_of(layer), torch.Size(layer.kernel_size).numel()
    x = x if x.dim() > len(layer.kernel_size) + 1 else x.unsqueeze(0)
    rank = directions.shape[1]
    total = torch.zeros(groups * rank, taps, taps, dtype=torch.float64, device=x.device)
    each = max(1, MOST // (groups * rank * taps * max(1, x[0, 0].numel())))
    dtype = torch.promote_types(x.dtype, torch.float32)
    along, centre = (each.to(x.device, dtype) for each in (directions.reshape(groups, -1, rank), mean))
    with exact_products(x.device):
        for part in x.split(each):
            rows = part.to(dtype) - centre.view(-1, *[1] * len(layer.kernel_size))
            read = torch.einsum("ngm...,gmr->ngr...", rows.unflatten(1, (groups, -1)), along).flatten(1, 2)
            patches = _patches(read, layer).movedim(0, 1).flatten(1, -2)  # (g*r, samples, taps)
            total += torch.bmm(patches.mT, patches).double()
    return total


def _patches(images: Tensor, layer: Any) -> Tensor:
    """What a convolution sees at every position, (n, c, *positions, taps); around images, the mean."""
    pads = layer._reversed_padding_repeated_twice
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    images = F.pad(images, list(pads), mode=mode)
    spatial = len(layer.kernel_size)
    for dim, (size, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), start=2
    ):
        images = images.unfold(dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return images.flatten(2 + spatial)
