"""The demo's network: two convolutions and two dense layers, at any width."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pcn.costs.count import count
from pcn.models.initialise import glorot_uniform_

FULL = 256  # the width of the widest layer of the parent


class DigitsNetwork(nn.Module):
    """32, 64, pool, 256, 10 at ``width=256``; every hidden layer shrinks in proportion below that."""

    def __init__(self, width: int = FULL) -> None:
        super().__init__()
        first, second = max(1, width // 8), max(1, width // 4)
        self.conv1 = nn.Conv2d(1, first, 3, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1)
        self.fc1 = nn.Linear(second * 4 * 4, width)
        self.output = nn.Linear(width, 10)
        glorot_uniform_(self)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.output(F.relu(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


def width_of_size(trainable: int) -> int:
    """Return the width at which the network comes nearest to so many trainable parameters."""
    return min(range(1, FULL + 1), key=lambda width: abs(size_of_width(width) - trainable))


@cache
def size_of_width(width: int) -> int:
    """Return how many parameters the network trains at a width."""
    with torch.device("meta"):
        return count(DigitsNetwork(width)).trainable
