"""Several runs at once, each in a process of its own that is stopped when it takes too long."""

from __future__ import annotations

import faulthandler
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

GRACE_S = 120  # after a deadline, which a run notices at the end of an epoch

Item = TypeVar("Item")


@dataclass
class Started(Generic[Item]):
    item: Item
    process: BaseProcess
    answers: Connection
    until: float


def run_each(
    waiting: Sequence[Item],
    work: Callable[[Item], tuple[Callable[[Any], Any], Any]],
    done: Callable[[Item, Any], None],
    *,
    together: int = 1,
    limit_s: float = 3600,
    until: float = float("inf"),
    ready: Callable[[Item, Sequence[Item]], bool] = lambda item, running: True,
) -> list[Item]:
    """Do every item once it is ``ready``, in this order where possible; return those that failed.

    ``work`` gives a function and its argument for a process to call, ``done`` gets what it returned. Nothing starts
    after ``until`` (as of time.time()); a process that runs longer than its limit, or far beyond that, is ended.
    """
    waiting, running, failed = list(waiting), list[Started[Item]](), list[Item]()
    while True:
        for item in [i for i in waiting if len(running) < together and time.time() < until]:
            if len(running) < together and ready(item, [each.item for each in running]):
                waiting.remove(item)
                running.append(_start(item, *work(item), min(time.time() + limit_s, until + GRACE_S)))
        if not running:
            break
        wait([each.answers for each in running], timeout=1)
        for each in list(running):
            outcome = _outcome(each)
            if outcome == "running":
                continue
            running.remove(each)
            if outcome == "failed":
                failed.append(each.item)
            else:
                done(each.item, outcome[0])
    if waiting and time.time() < until:
        print(f"{len(waiting)} runs wait for others that are not there, such as {waiting[0]}", flush=True)
    return failed


def _start(item: Item, function: Callable[[Any], Any], argument: Any, until: float) -> Started[Item]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, function, argument))
    process.start()
    there.close()
    return Started(item, process, here, until)


def _answer(answers: Connection, function: Callable[[Any], Any], argument: Any) -> None:
    faulthandler.register(signal.SIGUSR1)  # a run that seems to stand still says where it is: kill -USR1 PID
    try:
        answers.send(function(argument))
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None


def _outcome(started: Started[Any]) -> Any:
    """What a process has answered, in a tuple, or whether it is still running or has failed."""
    try:
        if started.answers.poll():
            answer = (started.answers.recv(),)
            started.process.join(timeout=10)
            started.process.kill()
            return answer
    except EOFError:
        started.process.join()
        print(f"{started.item} ended with {started.process.exitcode}", flush=True)
        return "failed"
    if time.time() < started.until:
        return "running"
    started.process.kill()
    started.process.join()
    print(f"{started.item} was stopped: it ran longer than it may", flush=True)
    return "failed"
