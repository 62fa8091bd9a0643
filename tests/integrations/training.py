"""What the frameworks train in these tests: a small network without biases, two parameter groups, easy data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import pcn
from pcn.distributed import state_hash
from pcn.training.world import leave

WIDTH, CLASSES, SAMPLES = 12, 3, 96
EPOCHS, SWITCH = 4, 2
SMALL = pcn.PCNConfig(rank=8)


class Network(nn.Module):
    """Layers without bias gain one at the switch, which joins its weight's group, not the one of other biases."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm1 = nn.Linear(WIDTH, 32, bias=False), nn.BatchNorm1d(32)
        self.fc2, self.norm2 = nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.fc1(inputs)))
        return self.head(torch.relu(self.norm2(self.fc2(x))))


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def optimizer_of(model: nn.Module) -> Optimizer:
    """Decay for matrices only, as many recipes have it."""
    matrices = {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1}
    others = {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0}
    return AdamW([matrices, others], lr=0.01)


def two_optimizers_of(model: nn.Module) -> list[Optimizer]:
    """One for matrices and one for vectors."""
    matrices = SGD([p for p in model.parameters() if p.ndim > 1], lr=0.05, momentum=0.9)
    return [matrices, AdamW([p for p in model.parameters() if p.ndim <= 1], lr=0.01)]


def data() -> TensorDataset:
    inputs = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))


def batches(size: int = 24) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(data(), batch_size=size)


def everything(model: nn.Module, *optimizers: Optimizer) -> str:
    """All that a run ends with, down to the last bit."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    settings = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    return f"{state_hash(model, optimizers)} {settings}"


def leave_together(end: str) -> None:
    """Check that all processes end with the same, and end."""
    ends: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ends, end)
    assert ends == [end] * len(ends)
    torch.distributed.barrier()
    leave(0)
