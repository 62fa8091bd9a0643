"""Doing the runs of the comparison: which are left, when each may start, and what is kept of it."""

from __future__ import annotations

import argparse
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pcn.training.run_folder import METRICS
from peers.methods import NEEDS_PLAN, forks, make_switch, missing_package, settings, switches
from peers.one_run import TIMED_EPOCHS, Job, attempt, check_data, epochs_seen, folder_name, trunk_name
from peers.order import Run, grid_runs, piece_number
from peers.pace import FILE, Pace, way
from peers.parents import PARENTS
from peers.plans import makes_plan, planner_run
from peers.results import Results
from peers.timetable import Timetable, say_not_started
from processes import Undone, Work, run_each

# Epochs: in a shorter run, making the fused kernels takes longer than they save. Runs that share a GPU are fused where
# that is asked for: some that were have stood still after their switch, perhaps in the compiler (pcn.kernels.inductor).
FUSED_FROM = 182


class Comparison:
    """The runs that were asked for, their files, and the results so far."""

    def __init__(self, results: Results, options: argparse.Namespace) -> None:
        self.results, self.options = results, options
        pace = Pace(results.folder / FILE, way(options.together, eager=options.eager, solo=options.solo))
        self.times = Timetable[Run](
            pace,
            options.time_limit,
            lambda run: (run.parent, run.method),
            self.epochs_left,
            options.together,
        )
        self.to_do: set[Run] = set()
        self.stopped: set[Run] = set()  # by the deadline

    def left(self, runs: Sequence[Run]) -> list[Run]:
        """The runs to do: those without a record or whose plan is lost, in a solo pass those without times.

        One that has diverged has no time of a whole run.
        """
        if not self.options.solo:
            return [run for run in runs if self.results.find(run) is None or self.lost_plan(run, runs)]
        found = [(run, self.results.find(run)) for run in runs if run.point is None]
        return [run for run, record in found if record is not None and _untimed(record)]

    def lost_plan(self, run: Run, runs: Sequence[Run]) -> bool:
        """Whether a run that is recorded has made a plan which is gone, and which others of these runs wait for."""
        if not makes_plan(run) or run in self.results.plans or self.results.has_diverged(run):
            return False
        others = (each for each in runs if each.method in NEEDS_PLAN and planner_run(each) == run)
        return any(self.results.find(each) is None for each in others)

    def do(self, runs: Sequence[Run]) -> str | None:
        """Do the runs that are left, as far as there is time; return what went wrong, if anything did."""
        left = self.possible(self.left(runs))
        self.to_do = set(left)
        unknown = sum(run.point is None and self.results.find(run) is None for run in runs)
        if left:
            check_data(PARENTS[left[0].parent].recipe(0, 1, self.options.data))
        if self.options.solo and unknown:
            print(f"{unknown} runs have no accuracy yet: they are timed once they have", flush=True)
        undone = run_each(
            left,
            self.work,
            self.finished,
            together=self.options.together,
            limit_s=self.options.run_limit,
            until=self.times.deadline,
            ready=self.ready,
            fits=self.fits,
            holds=self.holds,
            reuse=lambda each: not self.options.solo and not PARENTS[each.parent].compiled,
            stuck=lambda each: self.times.stuck(each, self.folder(each) / METRICS),
        )
        say_not_started(undone.late, "for want of time")
        return self.complaint(undone)

    def possible(self, runs: Sequence[Run]) -> list[Run]:
        """The runs that nothing is missing for; the others are named."""
        packages = {method: missing_package(method) for method in dict.fromkeys(run.method for run in runs)}
        for method, package in packages.items():
            if package is not None:
                without = [run for run in runs if run.method == method]
                say_not_started(without, f"as a package is missing: pip install {package}")
        return [run for run in runs if packages[run.method] is None]

    def complaint(self, undone: Undone[Run]) -> str | None:
        """What a person has to look into: runs that failed, and those that wait for what nobody is going to do."""
        later = {*undone.late, *undone.waiting, *self.stopped}
        stuck = [run for run in undone.waiting if not later.issuperset(self.needs(run))]
        said = [f"{len(undone.failed)} runs failed, such as {undone.failed[0]}"] if undone.failed else []
        if stuck:
            said.append(f"{len(stuck)} runs wait for others that are not there, such as {self.described(stuck[0])}")
        return "; ".join(said) or None

    def needs(self, run: Run) -> list[Run]:
        """What is to be done before a run: its method's grid, and the planner's run that it takes its plan from."""
        known = self.results.point(run) is not None
        grid = [] if known else [each for each in grid_runs(run.method, run.parent) if self.results.find(each) is None]
        planless = run.method in NEEDS_PLAN and planner_run(run) not in self.results.plans
        return grid + ([planner_run(run)] if planless else [])

    def described(self, run: Run) -> str:
        """A run, and what it waits for."""
        needed = self.needs(run)
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        return f"{run}, which waits for {needed[0]}{more}" if needed else str(run)

    def ready(self, run: Run, running: Sequence[Run]) -> bool:
        """Whether the grid has chosen, the plan is there, and nobody is training the first epochs that it needs."""
        if self.needs(run):
            return False
        trunk = self.trunk(run)
        if self.options.solo or trunk is None or trunk.exists() or (self.folder(run) / "checkpoints").exists():
            return True
        return all(self.trunk(other) != trunk for other in running)

    def fits(self, run: Run, running: Sequence[Run]) -> bool:
        """Whether a run can end in time, by what others have taken."""
        return self.times.fits(run, running, (each for each in self.to_do if self.ready(each, running)))

    def holds(self, earlier: Run, run: Run, running: Sequence[Run]) -> bool:
        """Whether a run that waits only for others which are about to end keeps a run of a later piece from starting.

        The points of a grid end together, and all final runs of their method wait for the last.
        """
        if piece_number(earlier) >= piece_number(run) or not (soon := self.times.soon(running, run)):
            return False
        needed = self.needs(earlier)
        return bool(needed) and soon.issuperset(needed) and self.fits(earlier, running)

    def epochs(self, run: Run) -> int:
        """How many epochs are trained: all, or as many as it takes to know the times, or a plan that was lost."""
        switch = PARENTS[run.parent].switch(run.epochs)
        if self.options.solo:
            return min(run.epochs, (switch if switches(run.method) else 1) + TIMED_EPOCHS)
        return run.epochs if self.results.find(run) is None else min(run.epochs, switch + 1)

    def epochs_left(self, run: Run) -> int:
        """Those that neither a checkpoint of the run nor its parent's first epochs have."""
        folder, trunk, epochs = self.folder(run), self.trunk(run), self.epochs(run)
        if self.options.solo:
            return epochs
        if seen := epochs_seen(folder):
            return epochs - seen
        if switches(run.method) and trunk is not None and trunk.exists():
            return epochs - PARENTS[run.parent].switch(run.epochs)
        return epochs

    def work(self, run: Run) -> Work:
        """What a process is to do for a run."""
        self.times.begin(run)
        return attempt, self.job(run)

    def job(self, run: Run) -> Job:
        options, record = self.options, self.results.find(run)
        point, trunk, compiled = self.results.point(run), self.trunk(run), self.compiled(run)
        assert point is not None
        whole = settings(run, point, data=options.data, plans=self.results.plans.path)
        return Job(
            str(run),
            replace(whole, epochs=self.epochs(run)),
            self.folder(run),
            trunk=trunk,
            leaves={} if trunk is None else {PARENTS[run.parent].switch(run.epochs): trunk},
            make_switch=make_switch(run.method, run.target),
            keeps_plan=makes_plan(run) and not options.solo,  # others are built from the first
            solo=options.solo,
            turns=options.work / "turns" if options.solo else None,
            whole_epochs=run.epochs,
            reads_test=run.point is None and record is None,  # of a run that is done again it was read before
            compiled=compiled,
            fused=compiled and (options.fused or (options.solo and run.epochs >= FUSED_FROM)),
            # A solo run that stops early is lost, and most of the time it waits: the driver ends it when time is up.
            deadline=math.inf if options.solo else self.times.deadline,
        )

    def compiled(self, run: Run) -> bool:
        return torch.cuda.is_available() and not self.options.eager and PARENTS[run.parent].compiled

    def trunk(self, run: Run) -> Path | None:
        """The parent's first epochs, with the run's own seed, length, rates (once known) and way to do a step."""
        point = self.results.point(run)
        if point is None or not forks(run.method):
            return None
        rates = f"{point.learning_rate:g}-{point.weight_decay:g}"
        name = f"{run.parent}-seed{run.seed}-epochs{run.epochs}-{rates}"
        return self.options.work / "trunks" / trunk_name(name, self.compiled(run))

    def folder(self, run: Run) -> Path:
        rates = "" if run.point is None else f"-{run.point.learning_rate:g}-{run.point.weight_decay:g}"
        name = f"{run.method}-{run.parent}-{run.target}-epochs{run.epochs}-seed{run.seed}{rates}"
        return self.options.work / self._stage(run) / folder_name(name, self.compiled(run))

    def _stage(self, run: Run) -> str:
        if self.options.solo:
            return "solo"
        if self.results.find(run) is not None:
            return "plans"
        return "final" if run.point is None else "grid"

    def finished(self, run: Run, measured: dict[str, Any] | None) -> None:
        """Keep the plan and the record; the run's folder, with its checkpoints, is not needed any more."""
        self.to_do.discard(run)
        if measured is None:
            self.stopped.add(run)
            return
        folder = self.folder(run)
        only_plan = not self.options.solo and self.results.find(run) is not None
        if not only_plan:  # whose epochs are mostly those of its parent
            self.times.learn(run, measured)
        if measured["plan"] is not None:  # before the record, which says that all is done
            self.results.plans.add(run, measured["plan"])
        if not only_plan:
            self.results.add(run, measured)
        shutil.rmtree(folder, ignore_errors=True)
        accuracy = measured["validation_accuracy" if run.point else "test_accuracy"]
        known = "diverged" if measured["validation_accuracy"] is None else "timed" if self.options.solo else "planned"
        shown = known if accuracy is None else f"{accuracy:.2f}%"
        print(f"{run}: {shown}, {len(self.to_do)} left, {time.time() - self.times.start:.0f} s", flush=True)


def _untimed(record: dict[str, Any]) -> bool:
    return record["train_seconds"] is None and record["test_accuracy"] is not None
