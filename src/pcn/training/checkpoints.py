"""Checkpoints that are whole or not there, each with its checksum in its name."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from pcn.errors import CheckpointError
from pcn.whole_files import write_whole

KEPT = 2  # the newest, and the one before it in case the newest is damaged later
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what is mended by making room
DAMAGED = ".damaged"  # ends the names of files that were set aside


class Checkpoints:
    """A folder of checkpoints named ``<steps done>-<checksum>.pt``; those found damaged end in ``.pt.damaged``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, step: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint; older ones go when it is safe on the disk."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getbuffer()
        path = self.folder / f"{step:012d}-{_checksum(data)}.pt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)
        except OSError as error:
            last = self._files()[-1:]
            raise unwritten(path, error, f"{last[0].name} is whole: " if last else "") from error
        for old in self._files()[:-KEPT]:
            old.unlink()
        return path

    def newest(self, device: torch.device) -> tuple[dict[str, Any] | None, list[str]]:
        """Read the newest checkpoint that is whole; also say which ones were not, and set those aside."""
        for leftover in self.folder.glob(".*.pt"):  # a process was killed while it wrote this
            leftover.unlink()
        damaged: list[Path] = []
        for path in reversed(self._files()):
            data = path.read_bytes()
            if path.stem.rpartition("-")[2] == _checksum(data):
                _set_aside(damaged)
                state = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
                return state, [each.name for each in damaged]
            damaged.append(path)
        if damaged:  # they keep their names: without any, the next start would be afresh
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged ({', '.join(each.name for each in damaged)}): "
                "bring one back from a backup, or remove the folder to start afresh"
            )
        return None, []

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.pt") if not path.name.startswith("."))


def _set_aside(damaged: list[Path]) -> None:
    """Rename files, which may be mended yet: as the newest by name they would take the place of whole ones."""
    for path in damaged:
        path.replace(path.with_name(path.name + DAMAGED))


def _checksum(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def unwritten(path: Path, error: BaseException, left: str = "") -> CheckpointError:
    """What to do about a file that could not be written; ``left`` says what is there all the same."""
    what = (error.strerror if isinstance(error, OSError) else None) or str(error)  # safetensors has errors of its own
    remedy = "make room" if any(os.strerror(number) in what for number in NO_ROOM) else "mend that"
    return CheckpointError(f"cannot write {path}: {what}; {left}{remedy} and start the same command again to go on")
