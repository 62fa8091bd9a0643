"""Patterns of a convolution's taps: kernels along them and back, group by group.

Letters: n outputs, r directions, p patterns, g groups; W~ the kernel (n, r, *kernel), C its coordinates (n, p), K the
patterns (g*p, *kernel). A direction has some of the patterns of its group, and each pattern has one direction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pcn.maths.autocast import without_autocast
from pcn.maths.products import cast, exact

RTOL = 1e-6  # a pattern that is this much shorter than another of its direction holds nothing but rounding


class Patterns(NamedTuple):
    """The patterns K (g*p, *kernel), direction by direction, and where each has one.

    ``mask`` (g*r, places) holds a one for each pattern of a direction and zeros behind them. It is of numbers with a
    point, as K is, so that averaging a model with itself or casting it leaves it what it was.
    """

    taps: Tensor
    mask: Tensor

    def exactly(self, like: Tensor) -> Patterns:
        """The same in float64."""
        taps = exact(self.taps, like)
        return Patterns(taps, self.mask.to(taps.device))

    def numbers(self, groups: int) -> Tensor:
        """Number the places (g, r*places) of every group: those with a pattern by it, the others from p on.

        No number stands twice, so that the gradient of a look-up adds nothing up.

        >>> Patterns(torch.zeros(3, 2), torch.tensor([[1.0, 1.0], [1.0, 0.0]])).numbers(1)
        tensor([[0, 1, 2, 3]])
        """
        taken = self.mask.reshape(groups, -1) > 0.5
        here, gone = (each.long().cumsum(1) for each in (taken, ~taken))  # ONNX adds up no booleans
        return torch.where(taken, here, len(self.taps) // groups + gone) - 1


def expanded(weight: Tensor, patterns: Patterns, groups: int) -> Tensor:
    """Return W~[n, r, k] = Σ_p C[n, p] K[p, k] over the patterns of direction r.

    Coordinates are looked up rather than added up where they belong, which on a GPU would not give the same bits twice.

    >>> patterns = Patterns(torch.tensor([[1.0, 1.0], [0.0, 1.0], [2.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    >>> expanded(torch.tensor([[1.0, 10.0, 100.0]]), patterns, 1)
    tensor([[[  1.,  11.],
             [200.,   0.]]])
    """
    kernel, places = patterns.taps.shape[1:], patterns.mask.shape[1]
    numbers, rows = patterns.numbers(groups), _by_group(weight, groups)
    along = _at_places(patterns, numbers).flatten(3).flatten(0, 1).to(weight.dtype)  # (g*r, places, k)
    rows = F.pad(rows, (0, numbers.shape[1] - rows.shape[2]))
    each = rows.gather(2, numbers.unsqueeze(1).expand(-1, rows.shape[1], -1)).unflatten(2, (-1, places))
    with without_autocast(weight.device.type):  # or the kernel would be rounded before anybody asks for it
        product = torch.bmm(each.transpose(1, 2).flatten(0, 1), along)  # (g*r, n/g, k)
    kernels: Tensor = product.unflatten(0, (groups, -1)).transpose(1, 2).reshape(len(weight), -1, *kernel)
    return kernels


def full_kernel(weight: Tensor, patterns: Patterns | None, groups: int) -> Tensor:
    """The kernel with every tap, in float64."""
    own = exact(weight, weight)
    return own if patterns is None else expanded(own, patterns.exactly(weight), groups)


def of_directions(patterns: Patterns, groups: int) -> Tensor:
    """Return (g, r, places, *kernel): the patterns of every direction, and zeros where it has no more."""
    return _at_places(patterns, patterns.numbers(groups))


def _at_places(patterns: Patterns, numbers: Tensor) -> Tensor:
    kernel, places = patterns.taps.shape[1:], patterns.mask.shape[1]
    rows = _by_group(patterns.taps.flatten(1), len(numbers))
    rows = F.pad(rows, (0, 0, 0, numbers.shape[1] - rows.shape[1]))
    found = rows.gather(1, numbers.unsqueeze(2).expand(-1, -1, kernel.numel()))
    return found.reshape(len(numbers), -1, places, *kernel)


def coordinates(kernels: Tensor, patterns: Patterns, groups: int) -> Tensor:
    """Return C[n, p] = Σ_k W~[n, r, k] K[p, k], r being the direction of p, in the dtype that W~ has.

    >>> patterns = Patterns(torch.tensor([[1.0, 1.0], [0.0, 1.0], [2.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    >>> coordinates(torch.tensor([[[1.0, 11.0], [200.0, 0.0]]]), patterns, 1)
    tensor([[ 12.,  11., 400.]])
    """
    exactly = patterns.exactly(kernels)
    each = _by_group(exact(kernels, kernels), groups).flatten(3)
    own = each.gather(2, owners(exactly, groups)[:, None, :, None].expand(-1, each.shape[1], -1, each.shape[3]))
    found = torch.einsum("gnpk,gpk->gnp", own, _by_group(exactly.taps.flatten(1), groups))
    return cast(found.flatten(0, 1), kernels)


def contributions(patterns: Patterns, along: Tensor | None = None) -> Tensor:
    """Return (p, *kernel, m): what each coordinate of a single group adds to a kernel over ``along``, the rows (r, m).

    Without it a direction stands for itself, so that coordinates times this are the kernel over directions.

    >>> patterns = Patterns(torch.tensor([[1.0, 1.0], [0.0, 1.0], [2.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    >>> torch.tensor([[1.0, 10.0, 100.0]]) @ contributions(patterns).flatten(1)  # tap by tap
    tensor([[  1., 200.,  11.,   0.]])
    """
    taps, mask = patterns
    rows = torch.eye(len(mask), dtype=taps.dtype, device=taps.device) if along is None else along
    each = rows[owners(patterns, 1)[0]]
    return taps.unsqueeze(-1) * each.reshape(len(taps), *[1] * (taps.dim() - 1), -1)


def owners(patterns: Patterns, groups: int) -> Tensor:
    """The direction (g, p) that each pattern belongs to, counted within its group."""
    return _places(patterns, groups) // patterns.mask.shape[1]


def leading_back(patterns: Patterns, groups: int) -> Patterns:
    """The patterns (in float64) that lead back: coordinates along these, expanded by the others, are what they were."""
    within = of_directions(patterns.exactly(patterns.taps), groups).flatten(3)
    back = torch.linalg.pinv(within, rtol=RTOL).mT.flatten(1, 2)
    found = back.gather(1, _places(patterns, groups).to(back.device)[..., None].expand(-1, -1, back.shape[2]))
    return Patterns(found.reshape(patterns.taps.shape), patterns.mask)


def _places(patterns: Patterns, groups: int) -> Tensor:
    """Where each pattern (g, p) stands among the places of its group."""
    return patterns.numbers(groups).argsort(dim=1)[:, : len(patterns.taps) // groups]


def _by_group(tensor: Tensor, groups: int) -> Tensor:
    return tensor.reshape(groups, -1, *tensor.shape[1:])
