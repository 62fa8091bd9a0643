"""Small networks and the training loop that people have: forward, backward, step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import pcn

Batch = tuple[Tensor, Tensor]
CLASSES = 4
CONFIG = pcn.PCNConfig(rank=0.5, skip_larger=False)


def dense(width: int = 24) -> nn.Sequential:
    layers = nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    return nn.Sequential(*layers)


def convolutional(dropout: float = 0.0) -> nn.Sequential:
    """Convolutions without bias, batch norm behind each."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(8, 12, 3, padding=1, stride=2, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    )


def vectors(seed: int, count: int = 32) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 10, generator=generator) * torch.linspace(2, 0.2, 10) + 0.3
    return inputs, inputs[:, :CLASSES].argmax(1)


def images(seed: int, count: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 3, 6, 6, generator=generator) + torch.rand(3, 1, 1, generator=generator)
    return inputs, torch.randint(CLASSES, (count,), generator=generator)


def step(model: Callable[[Tensor], Tensor], optimizer: Optimizer | list[Optimizer], batch: Batch) -> float:
    optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
    for each in optimizers:
        each.zero_grad()
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    for each in optimizers:
        each.step()
    return loss.item()


def gradients(model: nn.Module, run: Callable[[Tensor], Tensor], batch: Batch) -> dict[str, Tensor]:
    """The gradients of all parameters, the model being called through ``run``."""
    model.zero_grad()
    F.cross_entropy(run(batch[0]), batch[1]).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found
