"""A network with everything whose state could get lost: batch norm, dropout, a convolution and a wide linear layer."""

import torch
from torch import Tensor, nn

from pcn.models.cifar_resnet import CIFARResNet


def build() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def linear(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))


def normalised() -> nn.Sequential:
    """Batch norm over the samples alone."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


class NoClassifier(nn.Module):
    """In train mode puts out something else than rows of scores, or than a tensor."""

    def __init__(self, outputs: int | None) -> None:
        super().__init__()
        self.outputs, self.fc = outputs, nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        scores = self.fc(x.flatten(1))
        if not self.training:
            return scores
        return (scores, scores) if self.outputs is None else scores[:, :6].view(len(x), self.outputs, 2)


def residual() -> nn.Module:
    """Batch norms before layers that are transformed."""
    model = CIFARResNet(1, 8)
    model.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
    return model


def without_layers() -> nn.Sequential:
    """Nothing in it can be measured: the one layer with a weight is tied to another."""
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second)


class Looking(nn.Module):
    """Looks at memory, as many a network does, and has a weight that no layout is for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.fc = nn.Linear(8 * 64, 64)
        self.scale = nn.Parameter(torch.ones(1, 8, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((self.second(self.first(x)).relu() * self.scale[..., 0]).view(len(x), 8 * 64))
