"""One device for several processes, of which one at a time has it to itself."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ASK_EVERY_S = 0.05  # how long a device may stand idle between two turns


class Turn:
    """A process's turn at a device: with it nobody else is there who asks for one by the same file.

    A process that dies has given its turn up. One that waits calls ``waits`` all the while, for others to see that it
    does not stand still.
    """

    def __init__(self, path: Path, waits: Callable[[], None] = lambda: None) -> None:
        self.path, self.waits = path, waits
        self.waited_s = 0.0  # in all
        self._held: IO[str] | None = None

    def __enter__(self) -> Turn:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        self._held = self.path.open("w")
        while not _locked(self._held):
            self.waits()
            time.sleep(ASK_EVERY_S)
        self.waited_s += time.perf_counter() - began
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            self._held.close()  # which lets the next one have it

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Let others have the device, and wait for it afterwards."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
