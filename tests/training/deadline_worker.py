"""Trains under torchrun up to a deadline; the clock of the second process is a day ahead."""

from __future__ import annotations

import sys
import time

import torch

from pcn.training import Settings, Trainer, load_data, world
from pcn.training.world import leave

DAY_S = 86_400.0


def main(left_s: float) -> None:
    settings = Settings(model="small_network:build", batch=64, epochs=2, learning_rate=0.01, measure_every=0)
    with world("cpu") as here:
        trainer = Trainer(settings, load_data(settings, here.device, torch.float32), world=here)
        deadline, clock = time.time() + left_s, time.time
        if not here.first:
            time.time = lambda: clock() + DAY_S
        result = trainer.run(deadline)
        ends = here.ranks.gather((trainer.progress.epoch, result is not None))
        if here.first:
            sys.stdout.write(f"{ends}\n")


if __name__ == "__main__":
    main(float(sys.argv[1]))
    leave(0)
