"""Finding a data set's files: in a folder, in the folder that its archive unpacks to, or still in the archive."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pcn.errors import DataError


def find_files(folder: str | None, data: str, names: Sequence[str], inside: Sequence[str], source: str) -> Path:
    """Return the folder that holds all of the named files: the one given, or one of those ``inside`` it.

    An archive of the data set that lies there is unpacked first.
    """
    if folder is None:
        raise DataError(f"{data} needs data_dir (--data-dir), the folder that holds it; get it from {source}")
    root = Path(folder)
    candidates = [root, *(root / name for name in inside)]
    if not _holding(candidates, names):
        for archive in sorted(root.glob("*.tar.gz")):
            if archive.name == source.rpartition("/")[2]:
                unpack(archive, root)
    found = _holding(candidates, names)
    if found is None:
        listed = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        raise DataError(f"{root} does not hold {data} ({listed}): get {source} and put it, or what is in it, there")
    return found


def _holding(candidates: Sequence[Path], names: Sequence[str]) -> Path | None:
    return next((folder for folder in candidates if all((folder / name).is_file() for name in names)), None)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive whole or not at all; it may hold files and folders, and nothing outside of the folder."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as temporary:
        try:
            with tarfile.open(archive) as opened:
                for member in opened:
                    _put(opened, member, Path(temporary))
        except (tarfile.TarError, EOFError, OSError) as error:
            raise DataError(f"cannot unpack {archive}: {error}; get it again, or free some space") from error
        for made in Path(temporary).iterdir():
            if not (folder / made.name).exists():
                os.replace(made, folder / made.name)


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write one member (tarfile's own filter for data is missing before Python 3.11.4)."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        raise tarfile.TarError(f"{member.name!r} is no file or folder below its own")
    target = folder / path
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    held = archive.extractfile(member)
    assert held is not None  # of a file there is always something to read
    with held, target.open("wb") as written:
        shutil.copyfileobj(held, written)
