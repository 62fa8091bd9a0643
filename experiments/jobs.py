"""Doing several runs: one after the other in this process, or some at once in processes of their own."""

from __future__ import annotations

import faulthandler
import math
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

Job = TypeVar("Job")
Result = dict[str, Any] | None  # a record, or None for a run that ran out of time


def run_all(
    jobs: Sequence[Job],
    run: Callable[[Job], Result],
    done: Callable[[Result], None],
    *,
    together: int = 1,
    until: float = math.inf,
    reuse: bool = False,
    ready: Callable[[Job, Sequence[Job]], bool] = lambda job, unfinished: True,
) -> int:
    """Run every job and hand each result to ``done``; return how many failed.

    With ``reuse`` a process does several jobs, which suits short ones. A job starts once it is ``ready``, which is
    asked with the jobs that are not finished yet, and not after ``until`` (as of time.time()).
    """
    if together == 1:
        return sum(_finish(lambda job=job: run(job), done) for job in jobs if time.time() < until)
    context = multiprocessing.get_context("spawn")
    # A run that seems to stand still says where it is: kill -USR1 PID.
    speaking = partial(faulthandler.register, signal.SIGUSR1)
    waiting, running, failed = list(jobs), dict[Future[Result], Job](), 0
    tasks = None if reuse else 1
    with ProcessPoolExecutor(together, mp_context=context, initializer=speaking, max_tasks_per_child=tasks) as pool:
        while running or (waiting and time.time() < until):
            unfinished = [*waiting, *running.values()]
            startable = [job for job in waiting if ready(job, unfinished)] if time.time() < until else []
            for job in startable[: together - len(running)]:
                waiting.remove(job)
                running[pool.submit(run, job)] = job
            for future in wait(running, timeout=1, return_when=FIRST_COMPLETED).done:
                del running[future]
                failed += _finish(future.result, done)
    return failed


def _finish(result: Callable[[], Result], done: Callable[[Result], None]) -> bool:
    """Pass a result on; a run that fails is reported and does not stop the others."""
    try:
        done(result())
    except Exception:
        traceback.print_exc()
        return True
    return False
