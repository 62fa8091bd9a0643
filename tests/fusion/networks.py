"""Models with batch norms in every position that fusion knows, and in some that it has to leave alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pcn
from pcn.models.cifar_resnet import BasicBlock
from pcn.models.imagenet_resnet import Bottleneck
from pcn.nn import from_layer


class Residual(nn.Module):
    """Two basic blocks behind a first convolution; the second adds its input unchanged."""

    def __init__(self, block: Callable[..., nn.Module] = BasicBlock, width: int = 6) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.first = block(width, width, stride=2, project=True)
        wide = width if block is BasicBlock else 4 * width
        self.second = block(wide, width)
        self.fc = nn.Linear(wide, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        return self.fc(self.second(self.first(x)).mean((2, 3)))


class Before(nn.Module):
    """Batch norm and ReLU stand before the convolutions; sums in place, the activation as a module."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, padding_mode="circular") for _ in range(2))
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=False):
            y = conv(self.relu(norm(x)))
            y += x
            x = y
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.relu(self.norms[2](x)), 1), 1))


class Dense(nn.Module):
    """Linear layers; one batch norm's output goes somewhere else too."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.layers[0](x)).relu()
        z = self.norms[1](self.layers[1](y))
        z = torch.relu(z) + z
        z = torch.relu(self.norms[2](self.layers[2](z)))
        return self.layers[3](z) + y.sum(1, keepdim=True)


class Signals(nn.Module):
    """One dimension; the sum's order turned around."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv1d(3, width, 3), nn.Conv1d(width, width, 3, padding=1), nn.Conv1d(width, 4, 1)]
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.convs[0](x)))
        y = self.norms[1](self.convs[1](x))
        return self.convs[2](F.relu(torch.add(x, y))).mean(2)


def transformed(model: nn.Module, keep: tuple[str, ...] = (), rank: int = 3) -> nn.Module:
    """Give every layer behind the first a basis of its own; convolutions that read one activation share theirs."""
    bases: dict[int, tuple[Tensor, Tensor]] = {}
    for number, (name, module) in enumerate(list(model.named_modules())):
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and isinstance(weight, Tensor) and name not in keep:
            shared = number if "conv" not in name and "shortcut" not in name else weight.shape[1]
            if shared not in bases:
                width = weight.shape[1]
                bases[shared] = torch.rand(width), torch.linalg.qr(torch.randn(width, width))[0][:, :rank]
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, from_layer(module, *bases[shared]))
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.5)
    return model.double()


def patterned(model: nn.Module, keep: tuple[str, ...]) -> nn.Module:
    """Rewrite layers in directions that are read in patterns of their taps, as they are in random images."""
    stats = pcn.analyze(model, [torch.randn(64, *IMAGES[1:])])
    config = pcn.PCNConfig(rank=4, kernel_rank=4, exclude=keep, skip_larger=False)
    pcn.make_plan(model, stats, config).apply_(model, stats)
    return model.double()


def uncentred(model: nn.Module, keep: tuple[str, ...], shape: tuple[int, ...]) -> nn.Module:
    """Rewrite layers in directions of what they read, its mean included: none of them has a bias."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_parameter("bias", None)
    config = pcn.PCNConfig(rank=0.5, centred=False, exclude=keep, skip_larger=False)
    pcn.compress_(model, [torch.randn(64, *shape[1:])], config)
    return model.double()


IMAGES, ROWS, LINES = (4, 3, 6, 6), (7, 12), (4, 3, 9)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (lambda: transformed(Residual(), keep=("conv",)), IMAGES),
    "bottleneck": (lambda: transformed(Residual(Bottleneck), keep=("conv",)), IMAGES),
    "norm before": (lambda: transformed(Before(), keep=("stem",)), IMAGES),
    "linear": (lambda: transformed(Dense(), keep=("layers.0",)), ROWS),
    "signals": (lambda: transformed(Signals(), keep=("convs.0",)), LINES),
    "patterns": (lambda: patterned(Residual(), keep=("conv",)), IMAGES),
    "uncentred": (lambda: uncentred(Residual(), ("conv",), IMAGES), IMAGES),
    "uncentred linear": (lambda: uncentred(Dense(), ("layers.0",), ROWS), ROWS),
    "untransformed": (lambda: Residual().double(), IMAGES),
}
