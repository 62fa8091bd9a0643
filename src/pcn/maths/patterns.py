"""Patterns of a convolution's taps: kernels along them and back, group by group.

Letters: n outputs, r directions, p patterns, g groups; W~ the kernel (n, r, *kernel), C its coordinates (n, p), K the
patterns (g*p, *kernel). A direction has some of the patterns of its group, and each pattern has one direction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pcn.maths.products import cast, exact

RTOL = 1e-6  # a pattern that is this much shorter than another of its direction holds nothing but rounding


class Patterns(NamedTuple):
    """The patterns K (g*p, *kernel), and which of them each direction has.

    ``slots`` (g*r, taps) holds their numbers within a group, and p where there are no more.
    """

    taps: Tensor
    slots: Tensor

    def exactly(self, like: Tensor) -> Patterns:
        """The same in float64."""
        taps = exact(self.taps, like)
        return Patterns(taps, self.slots.to(taps.device))


def expanded(weight: Tensor, patterns: Patterns, groups: int) -> Tensor:
    """Return W~[n, r, k] = Σ_p C[n, p] K[p, k] over the patterns of direction r.

    Coordinates are looked up rather than added up where they belong, which on a GPU would not give the same bits twice.

    >>> patterns = Patterns(torch.tensor([[1.0, 1.0], [0.0, 1.0], [2.0, 0.0]]), torch.tensor([[0, 1], [2, 3]]))
    >>> expanded(torch.tensor([[1.0, 10.0, 100.0]]), patterns, 1)
    tensor([[[  1.,  11.],
             [200.,   0.]]])
    """
    kernel, slots = patterns.taps.shape[1:], _by_group(patterns.slots, groups)
    count, places = slots.shape[1:]
    rows = F.pad(_by_group(weight, groups), (0, 1))
    each = rows.gather(2, slots.reshape(groups, 1, -1).expand(-1, rows.shape[1], -1))
    along = of_directions(patterns, groups).to(weight.dtype)
    product = each.reshape(groups, -1, count, places, 1) * along.flatten(3).unsqueeze(1)
    return product.sum(3).reshape(len(weight), count, *kernel)


def full_kernel(weight: Tensor, patterns: Patterns | None, groups: int) -> Tensor:
    """The kernel with every tap, in float64."""
    own = exact(weight, weight)
    return own if patterns is None else expanded(own, patterns.exactly(weight), groups)


def of_directions(patterns: Patterns, groups: int) -> Tensor:
    """Return (g, r, taps, *kernel): the patterns of every direction, and zeros where it has no more."""
    kernel, slots = patterns.taps.shape[1:], _by_group(patterns.slots, groups)
    rows = F.pad(_by_group(patterns.taps.flatten(1), groups), (0, 0, 0, 1))
    found = rows.gather(1, slots.reshape(groups, -1, 1).expand(-1, -1, kernel.numel()))
    return found.reshape(*slots.shape, *kernel)


def coordinates(kernels: Tensor, patterns: Patterns, groups: int) -> Tensor:
    """Return C[n, p] = Σ_k W~[n, r, k] K[p, k], r being the direction of p, in the dtype that W~ has.

    >>> patterns = Patterns(torch.tensor([[1.0, 1.0], [0.0, 1.0], [2.0, 0.0]]), torch.tensor([[0, 1], [2, 3]]))
    >>> coordinates(torch.tensor([[[1.0, 11.0], [200.0, 0.0]]]), patterns, 1)
    tensor([[ 12.,  11., 400.]])
    """
    exactly = patterns.exactly(kernels)
    each = _by_group(exact(kernels, kernels), groups).flatten(3)
    own = each.gather(2, owners(exactly, groups)[:, None, :, None].expand(-1, each.shape[1], -1, each.shape[3]))
    found = torch.einsum("gnpk,gpk->gnp", own, _by_group(exactly.taps.flatten(1), groups))
    return cast(found.flatten(0, 1), kernels)


def owners(patterns: Patterns, groups: int) -> Tensor:
    """The direction (g, p) that each pattern belongs to, counted within its group."""
    slots = _by_group(patterns.slots, groups)
    return slots.flatten(1).argsort(dim=1)[:, : len(patterns.taps) // groups] // slots.shape[2]


def leading_back(patterns: Patterns, groups: int) -> Patterns:
    """The patterns (in float64) that lead back: coordinates along these, expanded by the others, are what they were."""
    within = of_directions(patterns.exactly(patterns.taps), groups).flatten(3)
    back = torch.linalg.pinv(within, rtol=RTOL).mT
    places = _by_group(patterns.slots, groups).flatten(1).argsort(dim=1)[:, : len(patterns.taps) // groups]
    found = back.flatten(1, 2).gather(1, places.to(back.device)[..., None].expand(-1, -1, back.shape[3]))
    return Patterns(found.reshape(patterns.taps.shape), patterns.slots)


def _by_group(tensor: Tensor, groups: int) -> Tensor:
    return tensor.reshape(groups, -1, *tensor.shape[1:])
