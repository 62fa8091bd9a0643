"""Results as JSON: what was run, on what, and one record per run, added as the runs finish."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

import pcn
from pcn.whole_files import write_whole

RESULTS = Path(__file__).parent / "results"
COMMITS = "commits.txt"  # in a run's folder
Record = dict[str, Any]
Same = Callable[[Record], bool]  # whether a record is that of one certain run


class Records:
    """A results file; runs that are in it already need not be done again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = json.loads(path.read_text())["records"] if path.exists() else []

    def has(self, **wanted: Any) -> bool:
        return any(all(record.get(key) == value for key, value in wanted.items()) for record in self.records)

    def add(self, record: Record, same: Same = lambda record: False) -> bool:
        """Add a record to those that are in the file by now; return False where one of those is the ``same`` run's."""
        with self._changing():
            if any(map(same, self.records)):
                return False
            self.records = [*self.records, record]
        return True

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Know what is in the file by now, and write what it is changed to, whole or not at all, if it is."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(self.path.parent):
            there = self.records = Records(self.path).records
            yield
            if self.records is not there:
                text = json.dumps({**provenance(), "records": self.records}, indent=1) + "\n"
                write_whole(self.path, text.encode())


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from writing results at the same time."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def provenance() -> Record:
    """Say which command, code and machine the last record came from."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "command": portable(["python", *sys.argv]),
        "commit": commit(),
        "hardware": {"gpu": gpu, "cpu": platform.machine(), "cpu_cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "pcn": pcn.__version__,
        },
    }


def portable(arguments: Sequence[str]) -> str:
    """A command line in which absolute paths are their last part alone: where folders lie is each machine's own.

    >>> portable(["python", "run.py", "--data", "/home/me/cifar", "--work=/tmp/w", "--seeds", "0"])
    'python run.py --data cifar --work=w --seeds 0'
    """
    parts = (each.rpartition("=") for each in arguments)
    return shlex.join(
        f"{name}{sign}{Path(value).name if Path(value).is_absolute() else value}" for name, sign, value in parts
    )


def commit() -> str | None:
    """Name the commit: what PCN_COMMIT says, which a copy without its history needs, or this checkout's own.

    Results are no part of the code: with them alone changed, a checkout is not dirty.
    """
    if given := os.environ.get("PCN_COMMIT"):
        return given
    named = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)*/results/*")
    return f"{named}-dirty" if named and changed else named or None


@cache
def commit_at_start() -> str | None:
    """Name the commit as it is when this process first asks: code that has been loaded stays what it was."""
    return commit()


def commits_of(folder: Path | None, now: str | None) -> str | None:
    """Name the commits that a run was trained at: those in its folder, to which the present one is added."""
    if folder is None:
        return now
    file = folder / COMMITS
    earlier = file.read_text().strip() if file.exists() else None
    names = joined(earlier, now)
    if names != earlier:
        write_whole(file, f"{names}\n".encode())
    return names


def joined(*commits: str | None) -> str | None:
    """Name several commits, each once.

    >>> joined("abc", "abc"), joined("abc+def", "def"), joined(None, "abc")
    ('abc', 'abc+def', 'abc')
    """
    return "+".join(dict.fromkeys(name for each in commits if each for name in each.split("+"))) or None


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
