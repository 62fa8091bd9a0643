"""Small models of the kinds that the tests transform, and a record of all that a failed change must leave alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, CLASSES = 12, 5


class Mlp(nn.Module):
    """Three dense layers; ``fc2`` reads 24 numbers."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class ConvNet(nn.Module):
    """Convolutions without bias before batch norms, a grouped one without a norm, a flatten and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 12, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(12)
        self.conv3 = nn.Conv2d(12, 8, 3, groups=2, bias=False)
        self.fc1 = nn.Linear(8 * 2 * 2, 16)
        self.fc2 = nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.conv3(x)).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))


class Residual(nn.Module):
    """``stem`` and ``block`` meet in a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Linear(WIDTH, 16), nn.Linear(16, 20)
        self.block, self.head = nn.Linear(20, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.tanh(x + self.block(torch.tanh(self.inner(torch.tanh(x))))))


class Branching(nn.Module):
    """Decides by its input's values, which no tracer can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x if x.sum() > 0 else -x)


class HardCoded(nn.Module):
    """Writes the width of ``fc1`` into its code."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(WIDTH, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.fc1(x)).view(-1, 16)
        return self.fc3(torch.tanh(self.fc2(x)))


def vectors(count: int = 200, width: int = WIDTH) -> Tensor:
    """Inputs that vary more in some directions than in others, around a mean that is not zero."""
    return torch.randn(count, width) @ (torch.randn(width, width) * torch.logspace(0, -2, width)) + torch.randn(width)


def images(count: int = 24) -> Tensor:
    return torch.randn(count, 3, 8, 8) + torch.rand(3, 1, 1)


def conv_net() -> ConvNet:
    """A ConvNet in eval mode whose batch norms do something."""
    model = ConvNet()
    for norm in (model.bn1, model.bn2):
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.normal_(norm.weight, 1, 0.3)
        nn.init.normal_(norm.bias)
    return model.eval()


def record(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that a change can touch: which modules and tensors it holds, and what is in them."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        plain = {k: v for k, v in module.__dict__.items() if isinstance(v, bool | int | str | tuple | type(None))}
        hooks = {k: list(v) for k, v in module.__dict__.items() if "hooks" in k}
        found[f"module {name}"] = (id(module), plain, hooks, "_pcn_plan" in module.__dict__)
    for name, tensor in all_tensors(model).items():
        found[f"tensor {name}"] = (id(tensor), tensor.requires_grad, tensor.dtype, tensor.detach().tolist())
    return found


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def distance(first: Tensor, second: Tensor) -> float:
    """How far apart two tensors are, relative to the second."""
    first, second = first.detach(), second.detach()
    return float((first - second).norm() / second.norm())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> float:
    """Train on one batch of inputs and labels; return the loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.item()
