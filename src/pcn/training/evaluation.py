"""How good a model is."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from pcn.running.outputs import called_logits
from pcn.training.data import Batch
from pcn.training.step import autocast
from pcn.training.world import World


def accuracy_percent(model: nn.Module, batches: Iterator[Batch], world: World) -> float:
    """The share of samples that a model gets right in eval mode; the processes share the batches out."""
    return accuracies_percent(model, batches, world, (1,))[0]


@torch.no_grad()
def accuracies_percent(
    model: nn.Module, batches: Iterator[Batch], world: World, guesses: tuple[int, ...]
) -> list[float]:
    """The share that is right with one guess, or with any of so many."""
    model.eval()
    counts = torch.zeros(1 + len(guesses), dtype=torch.float64, device=world.device)
    with autocast(world.device):
        for inputs, labels in batches:
            logits = called_logits(model(inputs))
            first = logits.argmax(1) == labels  # the first among equals, on every device
            among = logits.topk(min(max(guesses), logits.shape[1])).indices == labels[:, None]
            right = [first if most == 1 else first | among[:, :most].any(1) for most in guesses]
            counts += torch.stack([*(each.sum() for each in right), labels.new_tensor(len(labels))])
    model.train()
    *hits, seen = world.sum(counts).tolist()
    return [100 * float(each) / float(seen) for each in hits]
