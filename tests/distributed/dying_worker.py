"""A run whose second process is killed in the middle of the switch; started again, it takes up its last checkpoint."""

from __future__ import annotations

import datetime
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import pcn
from distributed.network import SMALL, NormNet, built, own_batches, rank, train
from pcn.nn import PCModule
from pcn.training.world import leave

EPOCHS, SWITCH = 4, 2


class Mortal(NormNet):
    """Kills its process in its last forward pass before, or its first one after, its layers were replaced."""

    dies: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        replaced = isinstance(self.fc1, PCModule)
        if not self.training and self.dies == ("after" if replaced else "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def run(checkpoint: Path, dies: str | None) -> dict[str, Any]:
    """Train to the end, from the last checkpoint if there is one; returns what came out."""
    model = DistributedDataParallel(built(Mortal))
    model.module.dies = dies
    optimizer = AdamW(model.parameters(), 0.01)
    switch = pcn.Switch(model, optimizer, SMALL, at=SWITCH)
    first = 1
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        first = saved["epoch"] + 1
        for name, part in (("switch", switch), ("model", model), ("optimizer", optimizer)):
            part.load_state_dict(saved[name])
    for epoch in range(first, EPOCHS + 1):
        train(model, optimizer, range(3 * epoch, 3 * epoch + 3))
        switch.after_epoch(epoch, own_batches())
        if rank() == 0:
            parts = {"switch": switch, "model": model, "optimizer": optimizer}
            torch.save({"epoch": epoch} | {n: p.state_dict() for n, p in parts.items()}, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
        dist.barrier()
    assert switch.plan is not None
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def main(folder: Path, dies: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))  # far longer than the test may take
    if dies == "never":
        torch.save(run(folder / "undisturbed.pt", None), folder / f"undisturbed{rank()}")
    torch.save(run(folder / "disturbed.pt", dies if rank() == 1 else None), folder / f"disturbed{rank()}")
    dist.barrier()
    leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
