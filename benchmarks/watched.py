"""Work in a process of its own that cannot take longer than it may, whatever hangs in it."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

Report = dict[str, Any]
SAYING_S = 0.5  # for a process to say where it is


def watched(label: str, limit_s: float, work: Callable[..., None], *arguments: Any) -> Iterator[Report]:
    """Yield what ``work(sender, *arguments)`` sends from a process that ends with the time limit; then what failed."""
    receiver, sender = context().Pipe(duplex=False)
    process = context().Process(target=begin, args=(work, sender, *arguments))
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


def begin(work: Callable[..., None], *arguments: Any) -> None:
    """Do the work in a process that says, when it is asked by a signal, where it is."""
    faulthandler.register(signal.SIGUSR1)
    work(*arguments)


def whereabouts(pid: int) -> list[str]:
    """What Linux knows of a process and of those that it has started: whether each runs, sleeps, or cannot be woken.

    A process that waits for a compiler or for a driver does not get to say so itself.
    """
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            name, fields = (folder / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            state, parent, group = fields.split()[:3]
            if pid in (int(folder.name), int(parent), int(group)):
                threads = [(task / "stat").read_text().rsplit(")", 1)[1].split()[0] for task in folder.glob("task/*")]
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
                lines.append(f"  {folder.name} {name}: {state}, threads {''.join(sorted(threads))}, {command}")
    return lines


def end(process: Any) -> None:
    """Stop a process and those that it has started, where it has made itself the leader of a group.

    One that still runs says where it hangs first, and what it is waiting for is said of it.
    """
    if process.is_alive():
        for line in whereabouts(process.pid):
            print(line, file=sys.stderr, flush=True)
        with suppress(ProcessLookupError):  # it may end just now
            os.kill(process.pid, signal.SIGUSR1)
        process.join(SAYING_S)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not got as far as being a group of its own
            process.kill()
    process.join()
