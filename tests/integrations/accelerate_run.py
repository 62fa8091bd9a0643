"""Runs with Accelerate, in this process or in one of several."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

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


class Run:
    """A loop as people write it, which saves its state after every epoch."""

    def __init__(self, **options: Any) -> None:
        self.accelerator = Accelerator(cpu=True)
        model = network()
        optimizer = optimizer_of(model)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
        prepared = self.accelerator.prepare(model, optimizer, schedule, batches(), batches())
        self.model, self.optimizer, self.schedule, self.loader, self.calibration = prepared
        switch = pcn.Switch(self.model, self.optimizer, **{"config": SMALL, "at": SWITCH} | options)
        self.switch = prepare_switch(self.accelerator, switch)
        self.rates: list[float] = []

    def train(self, folder: Path, first: int = 1) -> str:
        self.model.train()
        for epoch in range(first, EPOCHS + 1):
            for inputs, labels in self.loader:
                self.optimizer.zero_grad()
                self.accelerator.backward(nn.functional.cross_entropy(self.model(inputs), labels))
                self.optimizer.step()
            self.schedule.step()
            self.rates.append(self.schedule.get_last_lr()[0])
            self.switch.after_epoch(epoch, self.calibration)
            self.accelerator.save_state(str(folder / f"epoch{epoch}"))
        with torch.no_grad():
            self.model.eval()(data()[:][0])  # DDP gives all processes the first one's running statistics
        return everything(self.model, self.optimizer)


def check_every_state_resumes(folder: Path) -> str:
    """Train, then start again from each saved state: all end with the same bits, which are returned."""
    run, unswitched = Run(), Run(at=EPOCHS + 1)
    whole, rates = run.train(folder / "whole"), run.rates
    unswitched.train(folder / "unswitched")
    assert rates == unswitched.rates  # the schedule goes on where it was
    for epoch in range(1, EPOCHS + 1):
        run = Run()
        run.accelerator.load_state(str(folder / "whole" / f"epoch{epoch}"))
        assert isinstance(unwrap(run.model).fc2, PCModule) == (epoch >= SWITCH)
        assert run.train(folder / "again", epoch + 1) == whole, epoch
        assert run.rates == rates[epoch:]
    return whole


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "batch norm.s running statistics lag")  # after so few steps they do
    leave_together(check_every_state_resumes(Path(sys.argv[1])))
