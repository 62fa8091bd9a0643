"""Work in a process of its own that cannot take longer than it may, whatever hangs in it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

Report = dict[str, Any]


def watched(label: str, limit_s: float, work: Callable[..., None], *arguments: Any) -> Iterator[Report]:
    """Yield what ``work(sender, *arguments)`` sends from a process that ends with the time limit; then what failed."""
    receiver, sender = context().Pipe(duplex=False)
    process = context().Process(target=work, args=(sender, *arguments))
    process.start()
    sender.close()
    deadline = time.monotonic() + limit_s
    try:
        while receiver.poll(max(0.0, deadline - time.monotonic())):
            yield receiver.recv()
        yield {"failed": f"{label}: stopped after {limit_s:.0f} s"}
    except EOFError:
        process.join(10)
        if process.exitcode:
            yield {"failed": f"{label}: ended with {process.exitcode}"}
    finally:
        end(process)


def context() -> Any:
    """How processes start: what takes long to import is imported once for all of them, and CUDA not touched by that."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["torch", "pcn"])
    return found


def end(process: Any) -> None:
    """Stop a process and those that it has started, where it has made itself the leader of a group."""
    if process.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not got as far as being a group of its own
            process.kill()
    process.join()
