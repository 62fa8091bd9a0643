"""How the demo trains, and one epoch of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from pcn.demo.digits import Images
from pcn.errors import ConfigError


@dataclass(frozen=True)
class Recipe:
    """What all three networks share: Adam at one learning rate, the same epochs, splits and seeds."""

    epochs: int = 30
    switch_after: int = 5
    seeds: int = 5
    first_seed: int = 0
    batch: int = 32
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        if self.epochs < 2:
            raise ConfigError(f"epochs={self.epochs}: give at least 2, one before the switch and one after it")
        if self.switch_after < 1:
            raise ConfigError(f"switch_after={self.switch_after}: the switch comes after at least one epoch")
        if self.switch_after >= self.epochs:
            raise ConfigError(
                f"switch_after={self.switch_after} leaves none of the {self.epochs} epochs to train the PCN in: switch "
                f"earlier, or train longer (at least {self.switch_after + 1} epochs)"
            )
        if self.seeds < 1:
            raise ConfigError(f"{self.seeds} seeds: give at least 1")
        if not 0 <= self.first_seed < 2**63:
            raise ConfigError(f"seed {self.first_seed}: give a whole number of at least 0")

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Training:
    """A network and its optimizer; batches are drawn in an order that the seed alone decides."""

    def __init__(self, model: nn.Module, recipe: Recipe, seed: int) -> None:
        self.model = model
        self.recipe = recipe
        self.optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
        self.generator = torch.Generator().manual_seed(seed)

    def epoch(self, data: Images) -> None:
        """Go through the training images once."""
        self.model.train()
        order = torch.randperm(len(data.images), generator=self.generator)
        for index in order.split(self.recipe.batch):
            batch = data.take(index)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(batch.images), batch.labels).backward()
            self.optimizer.step()


@torch.no_grad()
def accuracy_percent(model: nn.Module, data: Images) -> float:
    """Return the share of images whose digit the model gets right."""
    model.eval()
    return 100 * float((model(data.images).argmax(1) == data.labels).float().mean())
