"""Doing several runs: one after the other in this process, or some at once in processes of their own."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from processes import run_each

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
    ready: Callable[[Job, Sequence[Job]], bool] = lambda job, running: True,
) -> int:
    """Run every job and hand each result to ``done``; return how many failed or could not start.

    With ``reuse`` a process does several jobs, which suits short ones. A job starts once it is ``ready``, which is
    asked with the jobs that are running, and not after ``until`` (as of time.time()).
    """
    if together == 1:
        return sum(not _do(job, run, done) for job in jobs if time.time() < until)
    how: dict[str, Any] = {"together": together, "limit_s": math.inf, "until": until, "ready": ready}
    undone = run_each(jobs, lambda job: (run, job), lambda _, result: done(result), **how, reuse=lambda job: reuse)
    return len(undone.failed) + len(undone.waiting)


def _do(job: Job, run: Callable[[Job], Result], done: Callable[[Result], None]) -> bool:
    """Do a run in this process; one that fails is reported and does not stop the others."""
    try:
        done(run(job))
    except Exception:
        traceback.print_exc()
        return False
    return True
