"""A model that several processes train, and the single process that sees all of their batches."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

import pcn
from pcn.layers import unwrap

BATCH = 8  # samples of every rank in every step
DEVICE = os.environ.get("PCN_TEST_DEVICE", "cpu")


class Net(nn.Module):
    """Convolutions and dense layers, one of them without bias, and no batch norm, in whose way many ranks would be."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, bias=False)
        self.fc1, self.fc2 = nn.Linear(8 * 2 * 2, 24), nn.Linear(24, 4)
        self.stubborn = False  # whether it refuses to run without the layer that it was built with

    def forward(self, x: Tensor) -> Tensor:
        if self.stubborn and not isinstance(self.fc1, nn.Linear):
            raise RuntimeError("where is my layer?")
        x = torch.tanh(self.conv2(torch.tanh(self.conv1(x)))).flatten(1)
        return self.fc2(torch.tanh(self.fc1(x)))


class NormNet(Net):
    """The same with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv2(torch.tanh(self.norm(self.conv1(x))))).flatten(1)
        return self.fc2(torch.tanh(self.fc1(x)))


SMALL = pcn.PCNConfig(rank=0.5, skip_larger=False, layers={"conv1": pcn.LayerRule(keep_outputs=6)})


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def built(kind: type[Net] = Net, seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return kind().double().to(DEVICE)


def data(step: int) -> tuple[Tensor, Tensor]:
    """The batch of all ranks for one step."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(size() * BATCH, 2, 6, 6, generator=generator, dtype=torch.float64) + 0.5
    return inputs.to(DEVICE), inputs.mean((2, 3)).argmax(1).to(DEVICE)


def train(model: nn.Module, optimizer: Optimizer, steps: range, *, alone: bool = False, **zero_grad: Any) -> None:
    """Train on this rank's part of every batch, or ``alone`` on all of it."""
    part = slice(None) if alone else slice(rank() * BATCH, (rank() + 1) * BATCH)
    for step in steps:
        inputs, labels = data(step)
        optimizer.zero_grad(**zero_grad)
        nn.functional.cross_entropy(model(inputs[part]), labels[part]).backward()
        optimizer.step()


def own_batches(steps: range = range(100, 104)) -> list[Tensor]:
    return [data(step)[0][rank() * BATCH : (rank() + 1) * BATCH] for step in steps]


def all_batches(steps: range = range(100, 104)) -> list[Tensor]:
    """What all ranks have, in the order in which one rank after the other tells it."""
    return [data(step)[0][one * BATCH : (one + 1) * BATCH] for one in range(size()) for step in steps]


def alone(model: nn.Module, optimizer: Optimizer | None) -> tuple[nn.Module, Optimizer | None]:
    """A copy for one process, with a copy of the optimizer that trains it."""
    base = unwrap(model)
    memo: dict[int, Any] = {}
    return copy.deepcopy(base, memo), None if optimizer is None else copy.deepcopy(optimizer, memo)


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in unwrap(model).named_parameters()}
