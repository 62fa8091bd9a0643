"""One device for several processes, of which one at a time has it to itself."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class Turn:
    """A process's turn at a device: with it nobody else is there who asks for one by the same file.

    A process that dies has given its turn up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waited_s = 0.0  # in all
        self._held: IO[str] | None = None

    def __enter__(self) -> Turn:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        self._held = self.path.open("w")
        fcntl.flock(self._held, fcntl.LOCK_EX)
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
