"""Where a command writes: made and tried out before anything takes long."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

from pcn.errors import FileError, file_trouble


def make_room(path: Path | None, flag: str = "--out") -> None:
    """Make the folder that a file, or a folder, is to stand in, and see that it can be written into."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise FileError(
            f"cannot write into {path.parent}: {file_trouble(error)}; give {flag} in another folder"
        ) from error


def make_room_for_file(path: Path | None, flag: str = "--out") -> None:
    """The same for a file, in whose place there must be no folder."""
    if path is not None and path.is_dir():
        raise FileError(f"{flag} {path} is a folder: give the file to write, as in {flag} {path / 'NAME'}")
    make_room(path, flag)
