"""Ways of wiring layers together: residual stages, dense concatenation, splits, shuffles, gates, shared modules."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from random_models.choices import Choices
from random_models.layers import BATCH_NORMS, CONVOLUTIONS, Made, Spec, activation, convolution, linear, norm, weighted


def body(c: Choices, spec: Spec, width: int | None = None, depth: int = 1) -> Made:
    """One or two layers, the last with the given width; now and then a whole block in front of them."""
    parts: list[nn.Module] = []
    if depth > 0 and c.chance(15):
        from random_models.model import block  # the two call each other

        inner, spec = block(c, spec, depth - 1)
        parts.append(inner)
    if c.chance(40):
        first, spec = weighted(c, spec)
        parts.append(first)
    last, spec = weighted(c, spec, width)
    parts.append(last)
    return (parts[0] if len(parts) == 1 else nn.Sequential(*parts)), spec


class Residual(nn.Module):
    """activation(body(x) + shortcut(x)); with ``scale`` the body is multiplied by one number per channel first."""

    def __init__(self, inner: nn.Module, shortcut: nn.Module, after: list[nn.Module], scale: Tensor | None) -> None:
        super().__init__()
        self.inner, self.shortcut, self.after = inner, shortcut, nn.Sequential(*after)
        self.scale = None if scale is None else nn.Parameter(scale)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(x)
        if self.scale is not None:
            inner = inner * self.scale
        return self.after(inner + self.shortcut(x))


def residual(c: Choices, spec: Spec, depth: int) -> Made:
    """A stage of one to three blocks; the first may change the width by a projection."""
    stages: list[nn.Module] = []
    for _ in range(c.between(1, 3)):
        projects = not stages and c.chance(40)
        shortcut, out = weighted(c, spec) if projects else (nn.Identity(), spec)
        inner, _ = body(c, spec, out.width, depth)
        scale = torch.ones(out.width, *[1] * spec.dims) if c.chance(25) else None
        stages.append(Residual(inner, shortcut, activation(c, out), scale))
        spec = out
    return nn.Sequential(*stages), spec


class Dense(nn.Module):
    """Every body reads what all before it have put out."""

    def __init__(self, bodies: list[nn.Module]) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x: Tensor) -> Tensor:
        for inner in self.bodies:
            x = torch.cat([x, inner(x)], 1)
        return x


def dense(c: Choices, spec: Spec, depth: int) -> Made:
    bodies = []
    for _ in range(c.between(1, 2)):
        inner, out = body(c, spec, 4, depth)
        bodies.append(inner)
        spec = spec.widened(spec.width + out.width)
    return Dense(bodies), spec


class Fork(nn.Module):
    """Two bodies read one activation; their outputs meet."""

    def __init__(self, first: nn.Module, second: nn.Module, join: str) -> None:
        super().__init__()
        self.first, self.second, self.join = first, second, join

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.first(x), self.second(x)
        joins: dict[str, Any] = {
            "add": lambda: first + second,
            "gate": lambda: first * torch.sigmoid(second),
            "maximum": lambda: torch.maximum(first, second),
            "stack": lambda: torch.stack([first, second], 2).mean(2),
            "cat": lambda: torch.cat((first, second), dim=1),
        }
        return joins[self.join]()  # type: ignore[no-any-return]


def fork(c: Choices, spec: Spec, depth: int) -> Made:
    join = c.pick(["add", "cat", "gate", "maximum", "stack"])
    first, out = body(c, spec, None, depth)
    second, other = body(c, spec, None if join == "cat" else out.width, depth)
    return Fork(first, second, join), spec.widened(out.width + (other.width if join == "cat" else 0))


class SumOfParts(nn.Module):
    """cat(first(x), second(x)) + whole(x): one layer's channels meet those of two others."""

    def __init__(self, first: nn.Module, second: nn.Module, whole: nn.Module) -> None:
        super().__init__()
        self.whole, self.first, self.second = whole, first, second

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.first(x), self.second(x)], 1) + self.whole(x)


def sum_of_parts(c: Choices, spec: Spec, depth: int) -> Made:
    small = c.between(1, 5)
    first, _ = weighted(c, spec, small)
    second, _ = weighted(c, spec, 5)
    whole, out = weighted(c, spec, small + 5)
    return SumOfParts(first, second, whole), out


class Split(nn.Module):
    """The channels are halved; each half goes its own way."""

    def __init__(self, first: nn.Module, second: nn.Module, how: str, add: bool) -> None:
        super().__init__()
        self.first, self.second, self.how, self.add = first, second, how, add

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        ways: dict[str, Any] = {
            "chunk": lambda: x.chunk(2, dim=1),
            "split": lambda: x.split(half, dim=1),
            "slice": lambda: (x[:, :half], x[:, half:]),
            "narrow": lambda: (x.narrow(1, 0, half), x.narrow(1, half, half)),
        }
        one, two = ways[self.how]()
        one, two = self.first(one), self.second(two)
        return one + two if self.add else torch.cat([one, two], 1)


def split(c: Choices, spec: Spec, depth: int) -> Made:
    if spec.width % 2:
        return weighted(c, spec)
    half, add = spec.widened(spec.width // 2), c.chance(40)
    first, out = body(c, half, None, depth)
    passes = not add and c.chance(50)
    second, other = (nn.Identity(), half) if passes else body(c, half, out.width if add else None, depth)
    how = c.pick(["chunk", "split", "slice", "narrow"])
    return Split(first, second, how, add), spec.widened(out.width + (0 if add else other.width))


class Shuffle(nn.Module):
    """Channels of ``groups`` groups are dealt out in turn."""

    def __init__(self, groups: int, how: str) -> None:
        super().__init__()
        self.groups, self.how = groups, how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "unflatten":
            return x.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        if self.how == "inner":  # the groups stand last
            turned = x.reshape(x.shape[0], -1, self.groups, *x.shape[2:]).transpose(1, 2)
        else:
            turned = x.view(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:]).transpose(1, 2)
        return turned.contiguous().view(x.shape)


def shuffle(c: Choices, spec: Spec, depth: int) -> Made:
    groups = c.pick([g for g in (2, 3, 4) if spec.width % g == 0] or [1])
    after, out = weighted(c, spec)
    return nn.Sequential(Shuffle(groups, c.pick(["view", "unflatten", "inner"])), after), out


class SqueezeExcite(nn.Module):
    """Every channel is multiplied by a number made from the means of all."""

    def __init__(self, down: nn.Module, up: nn.Module, convolves: bool) -> None:
        super().__init__()
        self.down, self.up, self.convolves = down, up, convolves

    def forward(self, x: Tensor) -> Tensor:
        space = tuple(range(2, x.ndim))
        pooled = x.mean(space, keepdim=self.convolves) if space else x
        gate = torch.sigmoid(self.up(F.relu(self.down(pooled))))
        return x * (gate if self.convolves or not space else gate[(..., *[None] * len(space))])


def squeeze_excite(c: Choices, spec: Spec, depth: int) -> Made:
    convolves = spec.dims > 0 and c.chance(50)
    if convolves:
        kind = CONVOLUTIONS[spec.dims]
        return SqueezeExcite(kind(spec.width, 4, 1), kind(4, spec.width, 1), True), spec
    return SqueezeExcite(linear(c, spec.width, 4), linear(c, 4, spec.width), False), spec


class Twice(nn.Module):
    """One layer, held under two names and called twice; the name that comes first may be called last."""

    def __init__(self, layer: nn.Module, swapped: bool) -> None:
        super().__init__()
        self.first = self.second = layer
        self.swapped = swapped

    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.second, self.first) if self.swapped else (self.first, self.second)
        return F.leaky_relu(second(F.leaky_relu(first(x))))


def twice(c: Choices, spec: Spec, depth: int) -> Made:
    layer, _ = weighted(c, spec, spec.width)
    if c.chance(50):
        return Twice(layer, c.chance(50)), spec
    return nn.Sequential(layer, nn.ReLU(), layer), spec


class SharedNorm(nn.Module):
    """Two layers, one batch norm after both."""

    def __init__(self, first: nn.Module, second: nn.Module, shared: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.shared = first, second, shared

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shared(self.first(x))) + self.shared(self.second(x))


def shared_norm(c: Choices, spec: Spec, depth: int) -> Made:
    width = spec.width
    layers = [linear(c, width, width) if spec.dims == 0 else convolution(c, spec, width) for _ in range(2)]
    return SharedNorm(*layers, BATCH_NORMS[spec.dims](width)), spec


class Gated(nn.Module):
    """The first half of the channels, gated by the second (GLU)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.inner(x), dim=1)


def gated(c: Choices, spec: Spec, depth: int) -> Made:
    inner, out = body(c, spec, 2 * c.pick([4, 6]), depth)
    return Gated(inner), out.widened(out.width // 2)


class ChannelsLast(nn.Module):
    """Linear layers over the channels of every position, as in ConvNeXt or an MLP-mixer."""

    def __init__(self, inner: nn.Module, flat: bool) -> None:
        super().__init__()
        self.inner, self.flat = inner, flat

    def forward(self, x: Tensor) -> Tensor:
        if self.flat:
            tokens = self.inner(x.flatten(2).transpose(1, 2))
            return tokens.transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:])
        return self.inner(x.movedim(1, -1)).movedim(-1, 1)


def channels_last(c: Choices, spec: Spec, depth: int) -> Made:
    width, flat = c.pick([4, 6, 8]), spec.dims > 0 and c.chance(50)
    first = [nn.LayerNorm(spec.width)] if c.chance(15) else []
    inner = nn.Sequential(*first, linear(c, spec.width, width), nn.GELU(), linear(c, width, spec.width))
    return ChannelsLast(inner, flat), spec


class InMode(nn.Module):
    """Runs a body in another mode; autocast lets float64 pass as it is."""

    def __init__(self, inner: nn.Module, autocast: bool) -> None:
        super().__init__()
        self.inner, self.autocast = inner, autocast

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16) if self.autocast else torch.enable_grad():
            return self.inner(x)


def in_mode(c: Choices, spec: Spec, depth: int) -> Made:
    inner, out = body(c, spec, None, depth)
    return InMode(inner, c.chance(50)), out


def plain(c: Choices, spec: Spec, depth: int) -> Made:
    made, out = weighted(c, spec)
    return nn.Sequential(made, *norm(c, out)), out
