"""The planner's plans, which other methods are built from: one file with a plan for each of the planner's runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pcn.plans.plan import Plan
from pcn.whole_files import write_whole
from peers.order import Run
from peers.parents import PARENTS
from records import alone_in

PLANNER = "pcn-planner"


class Plans:
    """The plans that are there, by the names of the planner's runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = _read(path)

    def __contains__(self, run: Run) -> bool:
        return plan_name(run) in self.known

    def add(self, run: Run, plan: str) -> None:
        """Keep the plan of a run of the planner's, as JSON, with those that are in the file by now.

        One that is there stays, as networks may be built from it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        name, made = plan_name(run), json.loads(plan)
        with alone_in(self.path.parent):
            self.known = _read(self.path)
            if self.known.setdefault(name, made) != made:
                print(f"{run}: has made another plan than {self.path} holds, which stays", flush=True)
            write_whole(self.path, as_text(self.known).encode())


def read_plan(path: str, name: str) -> Plan:
    return Plan.from_json(json.dumps(_read(Path(path))[name]))


def plan_name(run: Run) -> str:
    """What a plan is known by: the size, length and seed that it was made for; the grid has its own."""
    stage = "" if run.point is None else "-grid"
    return f"{run.parent}-{run.target}-epochs{run.epochs}-seed{run.seed}{stage}"


def planner_run(run: Run) -> Run:
    """The planner's run that a run takes its plan from: of the same seed, in the grid the one with the usual recipe."""
    return replace(run, method=PLANNER, point=None if run.point is None else PARENTS[run.parent].usual)


def makes_plan(run: Run) -> bool:
    """Whether others build on this run's plan."""
    return run == planner_run(run)


def as_text(plans: dict[str, Any]) -> str:
    """JSON with a line for each plan: plans may name thousands of channels.

    >>> print(as_text({"one": {"rank": 4}, "another": {}}), end="")
    {
    "one": {"rank": 4},
    "another": {}
    }
    """
    lines = (f"{json.dumps(name)}: {json.dumps(plan)}" for name, plan in plans.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}
