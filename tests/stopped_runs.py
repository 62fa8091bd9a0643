"""Training runs that are stopped at every epoch's end, or never, and go on until they are done."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from pcn.training import RunFolder, Settings, Trainer, load_data

DEADLINES = {"whole": math.inf, "stopped": 0.0}  # by the name of a run's folder


def train_to_the_end(folder: Path, settings: Settings, deadline: float) -> dict[str, Any]:
    """Start a run again and again until it has a result."""
    result = None
    while result is None:
        with RunFolder(folder, settings) as opened:
            data = load_data(settings, torch.device("cpu"), torch.float32)
            result = Trainer(settings, data, opened).run(deadline)
    return result
