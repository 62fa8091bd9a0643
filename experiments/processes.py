"""Several runs at once in processes of their own: one that fails, dies or takes too long costs no other."""

from __future__ import annotations

import faulthandler
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

GRACE_S = 120  # after a deadline, which a run notices at the end of an epoch
ENDING_S = 10  # for a process that has nothing left to do

Item = TypeVar("Item")
Work = tuple[Callable[[Any], Any], Any]  # a function and its argument, for a process to call


def run_each(
    items: Sequence[Item],
    work: Callable[[Item], Work],
    done: Callable[[Item, Any], None],
    *,
    together: int = 1,
    limit_s: float = 3600,
    until: float = float("inf"),
    ready: Callable[[Item, Sequence[Item]], bool] = lambda item, running: True,
    reuse: bool = False,
) -> list[Item]:
    """Do every item once it is ``ready``, in this order where possible; return those that failed.

    ``done`` gets what the work of an item returned, and ``ready`` is asked with the items that are running. With
    ``reuse`` a process does several items, which suits short ones. Nothing starts after ``until`` (as of time.time()),
    and a process that takes longer than its limit for an item, or far beyond that, is ended.
    """
    pool = _Pool[Item](reuse)
    waiting, failed = list(items), list[Item]()
    try:
        while True:
            for item in list(waiting):
                if len(pool.busy) == together or time.time() >= until:
                    break
                if ready(item, [each.item for each in pool.busy]):
                    waiting.remove(item)
                    pool.begin(item, work(item), min(time.time() + limit_s, until + GRACE_S))
            if not pool.busy:
                break
            for item, answers in pool.finished():
                if not answers or not _told(done, item, answers[0]):
                    failed.append(item)
    finally:
        pool.end()
    if waiting and time.time() < until:
        print(f"{len(waiting)} runs wait for others that are not there, such as {waiting[0]}", flush=True)
    return failed


def _told(done: Callable[[Item, Any], None], item: Item, answer: Any) -> bool:
    """Pass an answer on; where that fails, as on a full disk, the others go on nevertheless."""
    try:
        done(item, answer)
    except Exception:
        traceback.print_exc()
        return False
    return True


@dataclass
class _Worker(Generic[Item]):
    process: BaseProcess
    connection: Connection
    item: Item
    until: float


@dataclass
class _Pool(Generic[Item]):
    reuse: bool
    busy: list[_Worker[Item]] = field(default_factory=list)
    idle: list[_Worker[Item]] = field(default_factory=list)

    def begin(self, item: Item, work: Work, until: float) -> None:
        self.idle = [worker for worker in self.idle if worker.process.is_alive()]
        if self.idle:
            worker = self.idle.pop()
            worker.item, worker.until = item, until
        else:
            worker = _Worker(*_start(), item, until)
        self.busy.append(worker)
        try:
            worker.connection.send(work)
        except Exception:  # it cannot be sent, or the process has died: both show when it is listened to
            traceback.print_exc()
            worker.process.kill()

    def finished(self) -> list[tuple[Item, list[Any]]]:
        """The items that were finished within about a second, each with what came of it: nothing where it failed."""
        wait([each for worker in self.busy for each in (worker.connection, worker.process.sentinel)], timeout=1)
        found = []
        for worker in list(self.busy):
            answers = self._heard(worker)
            if answers is not None:
                self.busy.remove(worker)
                found.append((worker.item, answers))
        return found

    def _heard(self, worker: _Worker[Item]) -> list[Any] | None:
        """What a process has answered; nothing for one that has failed, None for one that is still at work."""
        try:
            if worker.connection.poll():
                answers: list[Any] = worker.connection.recv()
                if self.reuse:
                    self.idle.append(worker)
                else:
                    _end(worker.process, worker.connection, ENDING_S)
                return answers
        except Exception as error:  # the end of the process, or an answer that nobody can read
            _end(worker.process, worker.connection, ENDING_S)
            print(f"{worker.item} ended with {worker.process.exitcode}: {error!r}", flush=True)
            return []
        if not worker.process.is_alive():  # what it has started may still hold the connection
            print(f"{worker.item} ended with {worker.process.exitcode}", flush=True)
            return []
        if time.time() < worker.until:
            return None
        print(f"{worker.item} is stopped: it ran longer than it may", flush=True)
        _end(worker.process, worker.connection, 0)
        return []

    def end(self) -> None:
        for worker in self.idle:
            worker.connection.close()
        for worker in self.idle:
            _end(worker.process, worker.connection, ENDING_S)
        for worker in self.busy:
            _end(worker.process, worker.connection, 0)


def _start() -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,))
    process.start()
    there.close()
    return process, here


def _end(process: BaseProcess, connection: Connection, within_s: float) -> None:
    connection.close()
    process.join(within_s)
    process.kill()
    process.join()


def _serve(connection: Connection) -> None:
    """Do what is asked for until nobody asks any more; work that fails says why and is answered with nothing."""
    faulthandler.register(signal.SIGUSR1)  # a run that seems to stand still says where it is: kill -USR1 PID
    with suppress(EOFError):
        while True:
            function, argument = connection.recv()
            try:
                answers = [function(argument)]
            except Exception:
                traceback.print_exc()
                answers = []
            connection.send(answers)
