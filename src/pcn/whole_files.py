"""Files and folders that a crash leaves whole: the new one, or the one that was there."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def flush(*paths: Path) -> None:
    """Wait until files and folders are on the disk."""
    for path in paths:
        if path.is_dir() and os.name == "nt":  # Windows opens no folders
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that it is there whole or not at all, and on the disk when this returns."""
    temporary = path.with_name(f".{os.getpid()}-{path.name}")  # two processes may write the same file
    try:
        temporary.write_bytes(data)
        flush(temporary)
        os.replace(temporary, path)
        flush(path.parent)
    except BaseException:  # an interrupt too
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where a program may write a file, and others beside it: they are put in place if nothing fails, the file last."""
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        yield Path(folder) / path.name
        made = sorted(Path(folder).iterdir(), key=lambda each: each.name == path.name)
        flush(*made)
        for each in made:
            os.replace(each, path.with_name(each.name))
        flush(path.parent)


def put_in_place(fresh: Path, target: Path, aside: Path) -> None:
    """Rename a folder to ``target``; what was there ends up where the folder was, or at ``aside``.

    Linux swaps the two in one step. Elsewhere there is a moment in which ``target`` does not exist: then the old folder
    stands at ``aside``, and the new one is complete.
    """
    if not target.exists():
        os.replace(fresh, target)
    else:
        fresh.chmod(target.stat().st_mode)
        if not _exchange(fresh, target):
            os.replace(target, aside)
            try:
                os.replace(fresh, target)
            except BaseException:  # an interrupt too: whoever made ``aside`` may remove it
                os.replace(aside, target)
                raise
    flush(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Let two paths swap their names at once; return whether the system could."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Python's os module has no such call
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(first), here, os.fsencode(second), swap) == 0
