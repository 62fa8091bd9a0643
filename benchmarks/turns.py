"""Processes that prepare side by side and take turns at what nobody may disturb; none can take longer than it may."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from watched import Report, begin, context, end


class Turn:
    """A process's side: it waits until it may go on, together with others or while all of them wait."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def together(self) -> None:
        self._ask("together")

    def alone(self) -> None:
        self._ask("alone")

    def _ask(self, kind: str) -> None:
        self._connection.send({"turn": kind})
        self._connection.recv()


@dataclass
class _Worker:
    label: str
    process: Any
    connection: Connection
    since: float
    waits_for: str | None = None


def in_turns(
    work: Callable[..., None],
    jobs: Sequence[tuple[str, tuple[Any, ...]]],
    limit_s: float,
    until: float,
    kept_s: float = 0.0,
) -> Iterator[tuple[str, Report]]:
    """Run ``work(connection, *arguments)`` for every label and arguments; yield what each sends, with its label.

    What asks for a turn gets it when nobody runs: one after another those who want to be alone, then the rest at once.
    A turn that takes longer than the limit, or lasts beyond ``until`` (as of time.monotonic()), is its process's last;
    ``kept_s`` of that time are kept for each that waits, so that one which hangs does not cost the others theirs.
    """
    workers = [_start(work, label, arguments) for label, arguments in jobs]
    try:
        while workers:
            running = [worker for worker in workers if worker.waits_for is None] or _let_go_on(workers)
            last = until - kept_s * (len(workers) - len(running))
            first = min(min(worker.since + limit_s for worker in running), last)
            heard = wait([worker.connection for worker in running], max(0.0, first - time.monotonic()))
            for worker in running:
                if worker.connection in heard:
                    report = _receive(worker)
                elif time.monotonic() >= min(worker.since + limit_s, last):
                    report = {"failed": f"{worker.label}: stopped after {time.monotonic() - worker.since:.0f} s"}
                else:
                    continue
                if report is None or "failed" in report:
                    end(worker.process)
                    workers.remove(worker)
                if report and "turn" in report:
                    worker.waits_for = report["turn"]
                elif report:
                    yield worker.label, report
    finally:
        for worker in workers:
            end(worker.process)


def _start(work: Callable[..., None], label: str, arguments: tuple[Any, ...]) -> _Worker:
    ours, theirs = context().Pipe()
    process = context().Process(target=begin, args=(work, theirs, *arguments))
    process.start()
    theirs.close()
    return _Worker(label, process, ours, time.monotonic())


def _let_go_on(workers: list[_Worker]) -> list[_Worker]:
    chosen = [worker for worker in workers if worker.waits_for == "alone"][:1] or list(workers)
    for worker in chosen:
        worker.waits_for, worker.since = None, time.monotonic()
        with suppress(ConnectionError):  # of one that has ended, which shows when it is listened to
            worker.connection.send("go on")
    return chosen


def _receive(worker: _Worker) -> Report | None:
    """What a process says; None when it has ended well."""
    try:
        report: Report = worker.connection.recv()
    except (EOFError, ConnectionError):
        worker.process.join(10)
        code = worker.process.exitcode
        return {"failed": f"{worker.label}: ended with {code}"} if code != 0 else None
    return report
