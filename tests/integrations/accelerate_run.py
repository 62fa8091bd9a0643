"""Runs with Accelerate, in this process or in one of several."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

import pcn
from integrations.training import (
    EPOCHS,
    SMALL,
    SWITCH,
    batches,
    data,
    everything,
    leave_together,
    network,
    optimizer_of,
)
from pcn.integrations.accelerate import prepare_switch
from pcn.layers import unwrap
from pcn.nn import PCModule

MakeOptimizers = Callable[[nn.Module], list[Optimizer]]


class Run:
    """A loop as people write it, which saves its state after every epoch."""

    def __init__(
        self,
        make: MakeOptimizers = lambda model: [optimizer_of(model)],
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        self.accelerator = Accelerator(cpu=True)
        model = model or network()
        made = make(model)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(made[0], EPOCHS)
        prepared = self.accelerator.prepare(model, schedule, batches(), batches(), *made)
        self.model, self.schedule, self.loader, self.calibration, *self.optimizers = prepared
        given = self.optimizers if len(made) > 1 else self.optimizers[0]
        switch = pcn.Switch(self.model, given, **{"config": SMALL, "at": SWITCH} | options)
        self.switch = prepare_switch(self.accelerator, switch)
        self.rates: list[float] = []

    def train(self, folder: Path, first: int = 1) -> str:
        self.model.train()
        for epoch in range(first, EPOCHS + 1):
            for inputs, labels in self.loader:
                self.model.zero_grad()
                self.accelerator.backward(nn.functional.cross_entropy(self.model(inputs), labels))
                for optimizer in self.optimizers:
                    optimizer.step()
            self.schedule.step()
            self.rates.append(self.schedule.get_last_lr()[0])
            self.switch.after_epoch(epoch, self.calibration)
            self.accelerator.save_state(str(folder / f"epoch{epoch}"))
        with torch.no_grad():
            self.model.eval()(data()[:][0])  # DDP gives all processes the first one's running statistics
        return everything(self.model, *self.optimizers)


def check_every_state_resumes(folder: Path, **options: Any) -> str:
    """Train, then start again from each saved state: all end with the same bits, which are returned."""
    run, unswitched = Run(**options), Run(**options, at=EPOCHS + 1)
    whole, rates = run.train(folder / "whole"), run.rates
    unswitched.train(folder / "unswitched")
    assert rates == unswitched.rates  # the schedule goes on where it was
    for epoch in range(1, EPOCHS + 1):
        run = Run(**options)
        run.accelerator.load_state(str(folder / "whole" / f"epoch{epoch}"))
        assert isinstance(unwrap(run.model).fc2, PCModule) == (epoch >= SWITCH)
        assert run.train(folder / "again", epoch + 1) == whole, epoch
        assert run.rates == rates[epoch:]
    return whole


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "batch norm.s running statistics lag")  # after so few steps they do
    leave_together(check_every_state_resumes(Path(sys.argv[1])))
