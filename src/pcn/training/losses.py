"""The loss of an epoch, summed up on the device and over the processes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pcn.errors import ConfigError

if TYPE_CHECKING:
    from pcn.training.trainer import Trainer


class Losses:
    """Steps add their losses up on the device; here they become the run's, which a checkpoint holds."""

    def __init__(self, run: Trainer) -> None:
        self.run = run

    def mean(self) -> float:
        """The mean of the epoch that has ended; the next one starts at zero."""
        total = self.settle()
        self.run.progress.loss_sum = 0.0
        return total / self.run.steps_per_epoch

    def settle(self) -> float:
        """Bring the losses since the last call into the sum of the epoch, the mean over the processes."""
        run = self.run
        taken = torch.tensor(self._take(), dtype=torch.float64, device=run.device)
        run.progress.loss_sum += float(run.world.sum(taken)) / run.world.size
        return run.progress.loss_sum

    def _take(self) -> float:
        """The sum of the losses since the last call."""
        if self.run.step is None:
            return 0.0
        taken = float(self.run.step.loss_sum)
        self.run.step.loss_sum.zero_()
        return taken


def check_finite(loss: float, epoch: int) -> None:
    """Raise for a loss from which training cannot go on."""
    if not math.isfinite(loss):
        raise ConfigError(f"the loss is {loss} in epoch {epoch}: give a smaller learning_rate")
