"""How good a model is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import nn

from pcn.training.data import Batch
from pcn.training.step import autocast
from pcn.training.world import World


@torch.no_grad()
def accuracy_percent(model: nn.Module, batches: Iterator[Batch], world: World) -> float:
    """The share of samples that a model gets right in eval mode; the processes take turns with the batches."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.float64, device=world.device)
    with autocast(world.device):
        for inputs, labels in islice(batches, world.rank, None, world.size):
            counts[0] += (model(inputs).argmax(1) == labels).sum()
            counts[1] += len(labels)
    model.train()
    right, seen = world.sum(counts).tolist()
    return 100 * float(right) / float(seen)
