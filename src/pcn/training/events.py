"""Metrics for TensorBoard, where it is installed."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from pcn.switching import log_dimensions
from pcn.training.checkpoints import unwritten


class Events:
    """Writes every number of a record as a scalar, and the effective dimensions of the layers.

    Events from ``first_step`` on that others have written before are void. Each is on the disk when it has been
    written: TensorBoard's own writer has a thread, in which a full disk would be met.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        # Readers take the files of a folder in the order of their names.
        self._file = folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        start = SessionLog(status=SessionLog.START)
        self._append(Event(file_version="brain.Event:2"), Event(session_log=start, step=first_step))

    def write(self, record: dict[str, Any]) -> None:
        scalars = {
            f"{record['event']}/{name}": value
            for name, value in record.items()
            if isinstance(value, int | float) and name not in ("epoch", "step")
        }
        if record["event"] == "dimensions":
            log_dimensions(scalars.update, record["step"], record.get("layers", {}))
            del scalars["epoch"]
        self._append(_event(record["step"], scalars))

    def _append(self, *events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                records = RecordWriter(file)
                for event in events:
                    event.wall_time = time.time()
                    records.write(event.SerializeToString())
        except OSError as error:
            raise unwritten(self._file, error) from error


def _event(step: int, scalars: dict[str, float]) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
    return Event(step=step, summary=Summary(value=values))


def tensorboard_is_there() -> bool:
    """Say whether events can be written."""
    import importlib.util

    return importlib.util.find_spec("tensorboard") is not None
