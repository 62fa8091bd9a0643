"""Metrics for TensorBoard, where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pcn.switching import log_dimensions


class Events:
    """Writes every number of a record as a scalar, and the effective dimensions of the layers.

    Records of steps that are done again replace the earlier ones.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def write(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                self._writer.add_scalar(f"{record['event']}/{name}", value, record["step"])
        if record["event"] == "dimensions":
            log_dimensions(self._writer, record["step"], record.get("layers", {}))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def tensorboard_is_there() -> bool:
    """Say whether events can be written."""
    import importlib.util

    return importlib.util.find_spec("tensorboard") is not None
