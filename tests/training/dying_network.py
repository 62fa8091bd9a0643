"""The small network, whose process kills itself once, if ``DIES`` says "rank step marker-file"."""

import os
import signal
from pathlib import Path

from torch import nn


def build() -> nn.Module:
    from small_network import build as build_small  # beside this file, where runs are started

    model = build_small()
    rank, step, marker = os.environ.get("DIES", "-1 0 none").split()
    calls = 0

    def count(module: nn.Module, args: object) -> None:
        nonlocal calls
        calls += module.training
        if calls == int(step) and module.training and not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    if rank == os.environ.get("RANK"):
        model.register_forward_pre_hook(count)
    return model
