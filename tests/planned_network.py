"""A network with every kind of layer that a budget weighs against the others, and a batch for it."""

from __future__ import annotations

import torch
from torch import nn


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, groups=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


BATCH = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(0))
