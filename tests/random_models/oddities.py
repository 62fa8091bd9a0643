"""Blocks in the way of dropping channels: sizes written into code, mixing across channels, unknown operators."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from random_models.blocks import Fork
from random_models.choices import Choices
from random_models.layers import Made, Spec, weighted

TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class AtNumber(nn.Module):
    """Treats the channels below a fixed number unlike the others."""

    def __init__(self, number: int, how: str) -> None:
        super().__init__()
        self.number, self.how = number, how

    def forward(self, x: Tensor) -> Tensor:
        k = self.number
        ways: dict[str, Any] = {
            "double": lambda: torch.cat([x[:, :k] * 2, x[:, k:]], 1),
            "swap": lambda: torch.cat([x[:, k:], x[:, :k]], 1),
            "split": lambda: torch.cat([x.split([k, x.shape[1] - k], dim=1)[1], x[:, :k].tanh()], 1),
            "in place": lambda: _add_in_place(x.clone(), k),
            "assign": lambda: _assign(x.clone(), k),
            "picked": lambda: x + x[:, k : k + 1],
            "selected": lambda: x * x.select(1, k).unsqueeze(1),
        }
        return ways[self.how]()  # type: ignore[no-any-return]


def _add_in_place(x: Tensor, k: int) -> Tensor:
    x[:, :k].add_(1.0)
    return x


def _assign(x: Tensor, k: int) -> Tensor:
    x[:, k:] = 0.5
    return x


def at_number(c: Choices, spec: Spec, depth: int) -> Made:
    ways = ["double", "swap", "split", "in place", "assign", "picked", "selected"]
    after, out = weighted(c, spec)
    return nn.Sequential(AtNumber(c.between(1, spec.width - 1), c.pick(ways)), after), out


class AcrossChannels(nn.Module):
    """Mixes or reorders channels without a layer."""

    def __init__(self, how: str, width: int) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("order", torch.arange(width).flip(0), persistent=False)
        self.constant = torch.linspace(0.5, 1.5, width, dtype=torch.float64)  # no buffer: nobody could cut it

    def forward(self, x: Tensor) -> Tensor:
        space = [1] * (x.ndim - 2)
        ways: dict[str, Any] = {
            "centre": lambda: x - x.mean(1, keepdim=True),
            "softmax": lambda: x.softmax(1),
            "cumulate": lambda: x.cumsum(1),
            "flip": lambda: x.flip(1),
            "roll": lambda: x.roll(1, dims=1),
            "norm": lambda: F.normalize(x, dim=1),
            "index": lambda: x[:, self.order],
            "einsum": lambda: x + torch.einsum("nc...,nd...->nc...", x, x),
            "constant": lambda: x * self.constant.view(-1, *space),
            "largest": lambda: x * x.amax(1, keepdim=True).sigmoid(),
            "matmul": lambda: (x.movedim(1, -1) @ torch.ones(x.shape[1], x.shape[1]).to(x)).movedim(-1, 1),
            "global": lambda: x / x.abs().mean(),
        }
        return ways[self.how]()  # type: ignore[no-any-return]


def across_channels(c: Choices, spec: Spec, depth: int) -> Made:
    ways = ["centre", "softmax", "cumulate", "flip", "roll", "norm", "index", "einsum", "constant", "largest", "matmul"]
    after, out = weighted(c, spec)
    return nn.Sequential(AcrossChannels(c.pick([*ways, "global"]), spec.width), after), out


class OverSpace(nn.Module):
    """Moves, mixes or resizes positions and leaves channels alone, in all but the hard-coded ways."""

    def __init__(self, how: str, width: int) -> None:
        super().__init__()
        self.how, self.width = how, width

    def forward(self, x: Tensor) -> Tensor:
        n, side = x.shape[0], x.shape[-1]
        ways: dict[str, Any] = {
            "flip": lambda: x.flip(-1),
            "roll": lambda: x.roll(1, dims=(2,)),
            "softmax": lambda: x * x.softmax(-1),
            "pad": lambda: F.pad(x, (1, 0))[..., 1:],
            "interpolate": lambda: F.interpolate(x, scale_factor=2.0, mode="nearest")[
                (..., *[slice(None, None, 2)] * (x.ndim - 2))
            ],
            "merge": lambda: x.reshape(n, -1, side).relu().reshape(x.shape),
            "repeat": lambda: x.repeat(1, 2, *[1] * (x.ndim - 2)).view(n, 2, *x.shape[1:]).sum(1),
            "masked": lambda: x.masked_fill(x < 0, 0.25),
            "where": lambda: torch.where(x > 0, x, -0.5 * x),
            "mask of one": lambda: x * (x[:, :1] > 0).expand_as(x),
            "normalise": lambda: x / (1 + torch.linalg.vector_norm(x, dim=tuple(range(2, x.ndim)), keepdim=True)),
            "hard view": lambda: x.reshape(-1, self.width, side).tanh().reshape(x.shape),
            "batch in": lambda: x.reshape(-1, 2 * self.width, *x.shape[2:]).tanh().reshape(x.shape),
            "by width": lambda: x * x.shape[1] ** -0.5,
            "over width": lambda: x / x.shape[1],
            "by a tensor of width": lambda: x / torch.tensor(x.shape[1]).to(x),
            "clamp": lambda: x.clamp(min=x.amin(-1, keepdim=True) / 2),
        }
        return ways[self.how]()  # type: ignore[no-any-return]


def over_space(c: Choices, spec: Spec, depth: int) -> Made:
    after, out = weighted(c, spec)
    if spec.dims == 0:
        return after, out
    ways = ["flip", "roll", "softmax", "pad", "interpolate", "merge", "repeat", "masked", "where", "normalise", "clamp"]
    how = c.pick([*ways, "mask of one", "hard view", "batch in", "by width", "over width", "by a tensor of width"])
    return nn.Sequential(OverSpace(how, spec.width), after), out


class ChannelsAsSpace(nn.Module):
    """A convolution that takes positions for channels, and channels for positions."""

    def __init__(self, positions: int, kernel: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(positions, positions, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)


def channels_as_space(c: Choices, spec: Spec, depth: int) -> Made:
    if not 2 <= spec.positions <= 36:
        return weighted(c, spec)
    after, out = weighted(c, spec)
    return nn.Sequential(ChannelsAsSpace(spec.positions, c.pick([3, 1])), after), out


class OwnLayer(nn.Module):
    """A layer that nobody else has written."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(outputs, inputs))
        self.bias = nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.movedim(1, -1), self.weight / self.weight.shape[1], self.bias).movedim(-1, 1)


class OwnLayerDirect(OwnLayer):
    """The same with its weight as it stands."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.movedim(1, -1), self.weight, self.bias).movedim(-1, 1).tanh()


class Attention(nn.Module):
    """Attention over positions, whose layers nobody calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2 if width % 2 == 0 else 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).mT if x.ndim > 2 else x[:, None]
        return x + self.attention(tokens, tokens, tokens, need_weights=False)[0].mT.reshape(x.shape)


class Borrower(nn.Module):
    """Calls a layer and uses its weight a second time by hand."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        last = x.movedim(1, -1)
        return (self.layer(last) + F.linear(last.tanh(), self.layer.weight)).movedim(-1, 1)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x.movedim(1, -1)).relu()).movedim(-1, 1)


def own_layer(c: Choices, spec: Spec, depth: int) -> Made:
    kind = c.below(6)
    if kind == 5:
        normed = nn.utils.parametrizations.weight_norm(nn.Linear(spec.width, spec.width))
        return Wrapped(normed), spec
    made = [
        lambda: OwnLayer(spec.width, spec.width),
        lambda: OwnLayerDirect(spec.width, spec.width),
        lambda: Borrower(nn.Linear(spec.width, spec.width)),
        lambda: Tied(spec.width),
        lambda: Attention(spec.width),
    ][kind]()
    return made, spec


def transposed(c: Choices, spec: Spec, depth: int) -> Made:
    """A transposed convolution, which cannot be transformed, meets a layer that can."""
    if spec.dims == 0:
        return weighted(c, spec)
    other, out = weighted(c, spec)
    layer = TRANSPOSED[spec.dims](spec.width, out.width, 3, padding=1, bias=c.chance(50))
    before, _ = weighted(c, spec, spec.width)
    return Fork(nn.Sequential(before, layer), other, c.pick(["add", "gate"])), out


class Wrapped(nn.Module):
    """Calls a layer that wants channels last."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.movedim(1, -1)).movedim(-1, 1)
