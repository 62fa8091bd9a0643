"""Several runs at once in processes of their own: one that fails, dies or takes too long costs no other."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from pcn.errors import ConfigError, DataError

GRACE_S = 120  # after a deadline, which a run notices at the end of an epoch
ENDING_S = 10  # for a process that has nothing left to do
# For processes that share a machine's cores, unless the user says otherwise. A pool of compiling threads in every one
# of them has stalled, and processes are many enough.
SIDE_BY_SIDE = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

Item = TypeVar("Item")
Work = tuple[Callable[[Any], Any], Any]  # a function and its argument, for a process to call


@dataclass(frozen=True)
class Undone(Generic[Item]):
    """What came to nothing: items that failed, that wait for others which are not there, and that had no time."""

    failed: list[Item] = field(default_factory=list)
    waiting: list[Item] = field(default_factory=list)
    late: list[Item] = field(default_factory=list)


def run_each(
    items: Sequence[Item],
    work: Callable[[Item], Work],
    done: Callable[[Item, Any], None],
    *,
    together: int = 1,
    limit_s: float = 3600,
    until: float = float("inf"),
    ready: Callable[[Item, Sequence[Item]], bool] = lambda item, running: True,
    fits: Callable[[Item, Sequence[Item]], bool] = lambda item, running: True,
    holds: Callable[[Item, Item, Sequence[Item]], bool] = lambda earlier, item, running: False,
    reuse: Callable[[Item], bool] = lambda item: False,
    stuck: Callable[[Item], bool] = lambda item: False,
) -> Undone[Item]:
    """Do every item once it is ``ready``, in this order where possible; return what was not done.

    ``done`` gets what the work of an item returned; ``ready`` and ``fits`` are asked with the items that are running.
    An item that does not fit into the time lets others go first, but each earlier one that ``holds`` a free place
    against an item keeps it. A process does one item, or several of those to ``reuse`` it, which suits short ones.
    Nothing starts after ``until`` (as of time.time()). A process that takes longer than its limit for an item, or far
    beyond that, is ended, and so is one whose item is ``stuck``. What fails is tried once more, before others, unless
    it would fail again: because of what the user has given, or because it takes too long.
    """
    pool = _Pool[Item](SIDE_BY_SIDE if together > 1 else {})
    waiting, failed, again = list(items), list[Item](), list[Item]()
    try:
        while True:
            while (
                item := _next(waiting, pool.items, together, ready, fits, holds)
            ) is not None and time.time() < until:
                waiting.remove(item)
                pool.begin(item, work(item), min(time.time() + limit_s, until + GRACE_S), reuse(item))
            if not any(map(reuse, waiting)):
                pool.dismiss()
            if not pool.busy:
                break
            for item, answer in pool.finished(stuck):
                if answer.done and _told(done, item, answer.value):
                    continue
                if answer.final or item in again:
                    failed.append(item)
                else:
                    print(f"{item} has failed: it is tried once more", flush=True)
                    again.append(item)
                    waiting.insert(0, item)
    finally:
        pool.end()
    failed += [item for item in waiting if item in again]
    waiting = [item for item in waiting if item not in again]
    late = [item for item in waiting if time.time() >= until or (ready(item, []) and not fits(item, []))]
    return Undone(failed, [item for item in waiting if item not in late], late)


def _next(
    waiting: Sequence[Item],
    running: Sequence[Item],
    together: int,
    ready: Callable[[Item, Sequence[Item]], bool],
    fits: Callable[[Item, Sequence[Item]], bool],
    holds: Callable[[Item, Item, Sequence[Item]], bool],
) -> Item | None:
    """The first item that may start now, or None."""
    free, passed = together - len(running), list[Item]()
    for item in waiting if free else ():
        kept = (each for each in passed if holds(each, item, running))
        if ready(item, running) and fits(item, running) and len(list(islice(kept, free))) < free:
            return item
        passed.append(item)
    return None


def _told(done: Callable[[Item, Any], None], item: Item, answer: Any) -> bool:
    """Pass an answer on; where that fails, as on a full disk, the others go on nevertheless."""
    try:
        done(item, answer)
    except Exception:
        traceback.print_exc()
        return False
    return True


@dataclass(frozen=True)
class _Answer:
    """What came of an item: what its work returned, or that it has failed, which may be ``final``."""

    value: Any = None
    done: bool = False
    final: bool = False


@dataclass
class _Worker(Generic[Item]):
    process: BaseProcess
    connection: Connection
    item: Item
    until: float
    reuse: bool


@dataclass
class _Pool(Generic[Item]):
    environment: dict[str, str]  # of its processes, where nothing else is set
    busy: list[_Worker[Item]] = field(default_factory=list)
    idle: list[_Worker[Item]] = field(default_factory=list)
    ending: list[_Worker[Item]] = field(default_factory=list)

    @property
    def items(self) -> list[Item]:
        """What is being done."""
        return [worker.item for worker in self.busy]

    def begin(self, item: Item, work: Work, until: float, reuse: bool) -> None:
        self.idle = [worker for worker in self.idle if worker.process.is_alive()]
        if reuse and self.idle:
            worker = self.idle.pop()
            worker.item, worker.until = item, until
        else:
            worker = _Worker(*_start(self.environment), item, until, reuse)
        self.busy.append(worker)
        try:
            worker.connection.send(work)
        except Exception:  # it cannot be sent, or the process has died: both show when it is listened to
            traceback.print_exc()
            worker.process.kill()

    def finished(self, stuck: Callable[[Item], bool]) -> list[tuple[Item, _Answer]]:
        """The items that were finished within about a second, each with what came of it."""
        wait([each for worker in self.busy for each in (worker.connection, worker.process.sentinel)], timeout=1)
        found = []
        for worker in list(self.busy):
            answer = self._heard(worker, stuck)
            if answer is not None:
                self.busy.remove(worker)
                found.append((worker.item, answer))
        self._reap()
        return found

    def _heard(self, worker: _Worker[Item], stuck: Callable[[Item], bool]) -> _Answer | None:
        """What a process has answered, or that it has failed; None for one that is still at work."""
        try:
            if worker.connection.poll():
                answer: _Answer = worker.connection.recv()
                if worker.reuse and answer.done:  # what has failed may have left its process in any state
                    self.idle.append(worker)
                else:
                    self._let_go(worker)
                return answer
        except Exception as error:  # the end of the process, or an answer that nobody can read
            worker.process.join(1)
            print(f"{worker.item} ended with {worker.process.exitcode}: {error!r}", flush=True)
            self._let_go(worker)
            return _Answer()
        if not worker.process.is_alive():  # what it has started may still hold the connection
            print(f"{worker.item} ended with {worker.process.exitcode}", flush=True)
            return _Answer()
        late = time.time() >= worker.until
        if not late and not stuck(worker.item):
            return None
        print(f"{worker.item} is stopped: it {'ran longer than it may' if late else 'stands still'}", flush=True)
        _end(worker, 0)
        return _Answer(final=late)

    def dismiss(self) -> None:
        """Let processes go that have nothing to do, with the memory that they hold."""
        while self.idle:
            self._let_go(self.idle.pop())

    def _let_go(self, worker: _Worker[Item]) -> None:
        """Have a process end by itself, which may take seconds in which others can begin."""
        worker.connection.close()
        worker.until = time.time() + ENDING_S
        self.ending.append(worker)

    def _reap(self) -> None:
        for worker in list(self.ending):
            if not worker.process.is_alive() or time.time() >= worker.until:
                _end(worker, 0)
                self.ending.remove(worker)

    def end(self) -> None:
        self.dismiss()
        for worker in self.ending:
            _end(worker, max(0.0, worker.until - time.time()))
        for worker in self.busy:
            _end(worker, 0)


def _start(environment: dict[str, str]) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,))
    with _defaults(environment):  # libraries read it when the process loads them, before it is told anything
        process.start()
    there.close()
    return process, here


@contextmanager
def _defaults(environment: dict[str, str]) -> Iterator[None]:
    """Have processes that are started find these variables, where nobody has set them."""
    missing = {name: value for name, value in environment.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def _end(worker: _Worker[Any], within_s: float) -> None:
    worker.connection.close()
    worker.process.join(within_s)
    worker.process.kill()
    worker.process.join()


def _serve(connection: Connection) -> None:
    """Do what is asked for until nobody asks any more; work that fails says why, and whether it would again."""
    threading.Thread(target=_end_with_driver, daemon=True).start()
    faulthandler.register(signal.SIGUSR1)  # a run that seems to stand still says where it is: kill -USR1 PID
    with suppress(EOFError):
        while True:
            function, argument = connection.recv()
            try:
                answer = _Answer(function(argument), done=True)
            except Exception as error:
                traceback.print_exc()
                answer = _Answer(final=isinstance(error, (ConfigError, DataError)))
            connection.send(answer)


def _end_with_driver() -> None:
    """End this process when the one that started it is gone, however that came: it would keep its run's folder."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        wait([driver.sentinel])
        os._exit(1)
