"""Doing the runs of the comparison: which are left, when each may start, and what is kept of it."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pcn.errors import ConfigError
from peers.methods import NEEDS_PLAN, forks, make_switch, settings
from peers.one_run import OUTCOME, Job, diverged, folder_name, origin, run, trunk_name
from peers.order import Run
from peers.parents import PARENTS
from peers.results import Results, writes_plan
from processes import run_each

# Epochs: in a shorter run, making the fused kernels takes longer than they save. Runs that share a GPU are not fused:
# some that were have stood still after their switch, perhaps in the compiler (pcn.kernels.inductor).
FUSED_FROM = 182


class Comparison:
    """The runs that were asked for, their files, and the results so far."""

    def __init__(self, results: Results, options: argparse.Namespace) -> None:
        self.results, self.options = results, options
        self.deadline = time.time() + options.time_limit
        self.compiled = torch.cuda.is_available() and not options.eager

    def left(self, runs: Sequence[Run]) -> list[Run]:
        """The runs to do: those without a record, or in a solo pass the final ones whose times are not known.

        One that has diverged has no time of a whole run.
        """
        if not self.options.solo:
            return [run for run in runs if self.results.find(run) is None]
        found = [(run, self.results.find(run)) for run in runs if run.point is None]
        return [run for run, record in found if record is None or _untimed(record)]

    def do(self, runs: Sequence[Run]) -> list[Run]:
        """Do the runs that are left; return those that failed."""
        return run_each(
            self.left(runs),
            lambda each: (attempt, self.job(each)),
            self.finished,
            together=1 if self.options.solo else self.options.together,
            limit_s=self.options.run_limit,
            until=self.deadline,
            ready=self.ready,
        )

    def ready(self, run: Run, running: Sequence[Run]) -> bool:
        """Whether the grid has chosen, the plan is there, and nobody is training the first epochs that it needs."""
        if self.results.point(run) is None:
            return False
        if run.method in NEEDS_PLAN and not self.results.plan_file(run).exists():
            return False
        trunk = self.trunk(run)
        if self.options.solo or trunk is None or trunk.exists() or (self.folder(run) / "checkpoints").exists():
            return True
        return all(self.trunk(other) != trunk for other in running)

    def job(self, run: Run) -> Job:
        options, record = self.options, self.results.find(run)
        point, plan = self.results.point(run), self.results.plan_file(run)
        assert point is not None
        trunk = self.trunk(run)
        return Job(
            str(run),
            settings(run, point, data=options.data, plan=plan),
            self.folder(run),
            trunk=trunk,
            leaves={} if trunk is None else {PARENTS[run.parent].switch(run.epochs): trunk},
            make_switch=make_switch(run.method, run.target),
            plan_file=plan if writes_plan(run) and record is None else None,
            solo=options.solo,
            reads_test=run.point is None and record is None,  # of a run that is only timed again it was read before
            compiled=self.compiled,
            fused=self.compiled and options.solo and run.epochs >= FUSED_FROM,
            deadline=self.deadline,
        )

    def trunk(self, run: Run) -> Path | None:
        """The parent's first epochs, with the run's own seed, length, rates and way to do a step."""
        if not forks(run.method):
            return None
        point = self.results.point(run)
        assert point is not None
        rates = f"{point.learning_rate:g}-{point.weight_decay:g}"
        name = f"{run.parent}-seed{run.seed}-epochs{run.epochs}-{rates}"
        return self.options.work / "trunks" / trunk_name(name, self.compiled)

    def folder(self, run: Run) -> Path:
        stage = "solo" if self.options.solo else "final" if run.point is None else "grid"
        rates = "" if run.point is None else f"-{run.point.learning_rate:g}-{run.point.weight_decay:g}"
        name = f"{run.method}-{run.parent}-{run.target}-epochs{run.epochs}-seed{run.seed}{rates}"
        return self.options.work / stage / folder_name(name, self.compiled)

    def finished(self, run: Run, measured: dict[str, Any] | None) -> None:
        """Keep the record; the run's folder, with its checkpoints, is not needed any more."""
        if measured is not None:
            self.results.add(run, measured)
            shutil.rmtree(self.folder(run), ignore_errors=True)
            shown = measured["validation_accuracy"] if run.point else measured["test_accuracy"]
            known = "diverged" if measured["validation_accuracy"] is None else "timed"
            print(f"{run}: {known if shown is None else f'{shown:.2f}%'}", flush=True)


def attempt(job: Job) -> dict[str, Any] | None:
    """Do a run; of one that diverges nothing is known but that, and one that is only timed again has failed."""
    try:
        return run(job)
    except ConfigError as error:
        if not diverged(error) or (job.solo and not job.reads_test):
            raise
        return {**dict.fromkeys(OUTCOME), **origin(job)}


def _untimed(record: dict[str, Any]) -> bool:
    return record["train_seconds"] is None and record["test_accuracy"] is not None
