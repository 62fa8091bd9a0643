"""A network with every kind of layer that a report has to tell apart, under harmless or hostile names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HOSTILE = (
    "</script><script>alert('name')</script>",
    "<img src=x onerror=alert(1)>",
    "{{data}}\u2028\"'`${alert(2)}",
    "-->]]><svg onload=alert(3)>",
)


class Varied(nn.Module):
    """Shared inputs, groups, no biases, narrow layers, one whose weight is read directly, and one without variance."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(48)
        self.left = nn.Conv2d(48, 64, 3, stride=2, padding=1)
        self.right = nn.Conv2d(48, 64, 1, stride=2, bias=False)
        self.grouped = nn.Conv2d(64, 96, 3, padding=1, groups=2)
        self.wide = nn.Linear(96 * 16, 80)
        self.kept = nn.Linear(80, 90)
        self.tied = nn.Linear(90, 70)
        self.output = nn.Linear(70, 7)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(images)))
        x = F.relu(self.left(x) + self.right(x))
        x = F.relu(self.grouped(x)).flatten(1)
        x = F.relu(self.kept(F.relu(self.wide(x))))
        return self.output(F.relu(self.tied(x) + 0 * F.linear(x, self.tied.weight)))


def varied(seed: int = 0) -> tuple[nn.Module, list[Tensor]]:
    """The network, and batches with some structure in them."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    few = torch.randn(6, 3 * 8 * 8, generator=generator)
    batches = [torch.randn(40, 6, generator=generator) @ few for _ in range(5)]
    noise = [0.05 * torch.randn(40, 3 * 8 * 8, generator=generator) for _ in range(5)]
    return Varied(), [(b + n).view(40, 3, 8, 8) for b, n in zip(batches, noise, strict=True)]


def hostile() -> tuple[nn.Module, list[Tensor]]:
    """A small network whose layers have the names of attacks."""
    network = nn.Sequential()
    for number, name in enumerate(HOSTILE):
        network.add_module(name, nn.Linear(24, 24))
        network.add_module(f"relu{number}", nn.ReLU())
    network.add_module(f"norm{HOSTILE[0]}", nn.LayerNorm(24))
    return network, [torch.randn(64, 24)]
