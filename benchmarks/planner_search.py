"""Try ways to plan and to switch against each other, cheaply: 20 epochs, on the validation split only.

    python benchmarks/planner_search.py --data DIR --together 6 --time-limit 1700
    python benchmarks/planner_search.py --data DIR --arms "plain directions" taylor --seeds 0 1 2
    python benchmarks/planner_search.py --data DIR --arms promising             # those of PROMISING, in that order
    python benchmarks/planner_search.py --data DIR --arms finalists --epochs 60 # the same schedule, three times as long
    python benchmarks/planner_search.py --data DIR --arms conv4                 # those of Conv4, by its own protocol
    python benchmarks/planner_search.py --table                # differences from a narrower network, from the results

An arm is one line of ARMS in peers/arms.py: a name, and what it changes in the settings of the first arm, or its own
switch. Runs of one seed fork from one run of the parent, but for plain narrower networks, which are trained from
scratch; they are added to benchmarks/results/planner_search.json as they finish and are skipped when they are there.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pcn.training import Settings
from pcn.training.run_folder import METRICS
from peers import RESULTS, folder
from peers.arms import ARMS, GROUPS, UNSWITCHED, alike
from peers.late_changes import EPOCHS, scaled
from peers.one_run import UNWATCHED, Job, attempt, check_data, epochs_seen, folder_name, trunk_name
from peers.pace import FILE, Pace, way
from peers.parents import PARENTS
from peers.search_table import table
from peers.timetable import Timetable, say_not_started
from processes import Undone, Work, run_each
from records import Record, Records

RECORDS = "planner_search.json"
PARENT = "wide_resnet20"  # where an arm names no other network
SEEDS = (0, 1, 2, 3, 4)
FIELDS = (
    "trainable_params",
    "total_params",
    "flops_per_sample",
    "validation_after_switch",
    "validation_accuracy",
    "first_loss",
    "last_loss",
    "switch_seconds",
    "commit",
    "compiled",
)


@dataclass(frozen=True)
class Trial:
    """One arm on one seed, over some epochs."""

    arm: str
    seed: int
    epochs: int = EPOCHS

    @property
    def network(self) -> str:
        return ARMS[self.arm].get("network", PARENT)

    @property
    def target(self) -> int:
        """The number of trained parameters that it ends with, unless it is a parent."""
        return PARENTS[self.network].sizes[0]

    @property
    def parent(self) -> Trial | None:
        """What the trial forks from, unless it is a parent itself or trained from scratch."""
        arm = ARMS[self.arm]
        if "model" in arm or self.switch_epoch is None:
            return None
        both = ("learning_rate", "weight_decay")
        # A carried optimizer keeps its decay; a new one may have another, so a parent of the same rate comes first.
        wanted = [both] if arm.get("carry_state", True) else [both[:1], both]
        shared = ({name: arm[name] for name in names if name in arm} for names in wanted)
        found = (alike(self.arm, {**UNSWITCHED, **each}) for each in shared)
        return replace(self, arm=next(name for name in found if name is not None))

    @property
    def switch_epoch(self) -> int | None:
        """The epoch after which it switches, scaled from the arm's; None for a network that never does."""
        asked = ARMS[self.arm].get("switch_at")
        if asked is None:
            return PARENTS[self.network].switch(self.epochs)
        return None if asked == "never" else scaled(int(asked), self.epochs)

    @property
    def file_name(self) -> str:
        """What its files are named by."""
        arm = re.sub(r"\W+", "-", self.arm)
        return f"{arm}-seed{self.seed}-epochs{self.epochs}"


def settings(trial: Trial, data: Path) -> Settings:
    """The parent's recipe, with the planner's switch and what the arm changes."""
    base = replace(PARENTS[trial.network].recipe(trial.seed, trial.epochs, data), **UNWATCHED)
    changes = {name: value for name, value in ARMS[trial.arm].items() if name not in ("network", "switch", "switch_at")}
    if "model" in changes:
        changes["model_options"] = {"parent": base.model, "options": base.model_options, "target": trial.target}
    if trial.switch_epoch is None:
        return replace(base, **changes)
    usual = {"switch_at": str(trial.switch_epoch), "precondition": 0.0, "analysis_mode": "eval"}
    # What a budget does where nobody says has come out of these trials, and was another one when they began.
    budget = {"params": trial.target, "worth": "response", "patterns": False}
    return replace(base, **{**usual, **(budget if "params" not in changes else {}), **changes})


class Search:
    """The trials that were asked for and the results so far."""

    def __init__(self, records: Records, options: argparse.Namespace) -> None:
        self.records, self.options = records, options
        pace = Pace(records.path.parent / FILE, way(options.together, eager=options.eager))
        self.times = Timetable[Trial](
            pace, options.time_limit, lambda trial: (trial.network, trial.arm), self.epochs_left, options.together
        )
        self.to_do: list[Trial] = []

    def compiled(self, trial: Trial) -> bool:
        return torch.cuda.is_available() and not self.options.eager and PARENTS[trial.network].compiled

    def left(self) -> list[Trial]:
        """What is left to do, seed by seed, each parent before the first that forks from it."""
        asked = [Trial(arm, seed, self.options.epochs) for seed in self.options.seeds for arm in self.options.arms]
        trials = [trial for trial in asked if not self.recorded(trial)]
        items = dict.fromkeys(item for trial in trials for item in (trial.parent, trial) if item is not None)
        return [item for item in items if not self.recorded(item) or self.missing(item)]

    def recorded(self, trial: Trial) -> bool:
        return self.records.has(arm=trial.arm, seed=trial.seed, epochs=trial.epochs)

    def trunks(self, parent: Trial) -> dict[int, Path]:
        """Where the states lie that others fork from, by the epochs that they come after."""
        forks = [trial for arm in self.options.arms if (trial := replace(parent, arm=arm)).parent == parent]
        epochs = sorted({fork.switch_epoch for fork in forks if fork.switch_epoch and not self.recorded(fork)})
        return {epoch: self.trunk_file(parent, epoch) for epoch in epochs}

    def missing(self, parent: Trial) -> bool:
        return not all(file.exists() for file in self.trunks(parent).values())

    def do(self) -> Undone[Trial]:
        """Do what is left; return what was not done."""
        self.to_do = self.left()
        if self.to_do:
            check_data(settings(self.to_do[0], self.options.data))
        undone = run_each(
            self.to_do,
            self.work,
            self.finished,
            together=self.options.together,
            until=self.times.deadline,
            ready=lambda item, running: self.ready(item),
            fits=self.fits,
            reuse=lambda item: not PARENTS[item.network].compiled,
            stuck=lambda item: self.times.stuck(item, self.folder(item, self.epochs(item)) / METRICS),
        )
        say_not_started(undone.late, "for want of time")
        return undone

    def work(self, trial: Trial) -> Work:
        """What a process is to do for a trial."""
        self.times.begin(trial)
        return attempt, self.job(trial)

    def fits(self, trial: Trial, running: Sequence[Trial]) -> bool:
        """Whether a trial can end in time, by what others have taken."""
        return self.times.fits(trial, running, filter(self.ready, self.to_do))

    def epochs(self, trial: Trial) -> int:
        """How many epochs are trained: of a parent whose states are gone, and whose last epochs are known, fewer."""
        return max(self.trunks(trial), default=trial.epochs) if self.recorded(trial) else trial.epochs

    def epochs_left(self, trial: Trial) -> int:
        """Those that neither a checkpoint of the trial nor its parent's first epochs have."""
        forked = trial.switch_epoch or 0 if trial.parent is not None else 0
        epochs = self.epochs(trial)
        return epochs - (epochs_seen(self.folder(trial, epochs)) or forked)

    def ready(self, trial: Trial) -> bool:
        trunk = self.trunk(trial)
        return trunk is None or trunk.exists()

    def job(self, trial: Trial) -> Job:
        own = replace(settings(trial, self.options.data), epochs=self.epochs(trial))
        return Job(
            str(trial),
            own,
            self.folder(trial, own.epochs),
            trunk=self.trunk(trial),
            leaves=self.trunks(trial),
            make_switch=ARMS[trial.arm].get("switch"),
            reads_test=False,
            compiled=self.compiled(trial),
            deadline=self.times.deadline,
        )

    def trunk(self, trial: Trial) -> Path | None:
        """The state that a trial forks from."""
        return None if trial.parent is None else self.trunk_file(trial.parent, trial.switch_epoch)

    def trunk_file(self, parent: Trial, epoch: int | None) -> Path:
        return self.options.work / "trunks" / trunk_name(f"{parent.file_name}-after{epoch}", self.compiled(parent))

    def folder(self, trial: Trial, epochs: int) -> Path:
        """Where a run of so many of the trial's epochs keeps its checkpoints."""
        name = trial.file_name if epochs == trial.epochs else f"{trial.file_name}-to{epochs}"
        return self.options.work / folder_name(name, self.compiled(trial))

    def finished(self, trial: Trial, measured: Record | None) -> None:
        if measured is None:
            return
        self.times.learn(trial, measured)
        if not self.recorded(trial):
            kept = {name: measured[name] for name in FIELDS}
            key = {"arm": trial.arm, "seed": trial.seed, "epochs": trial.epochs}
            # Another process may have recorded the same trial meanwhile: that record stays.
            self.records.add({**key, "switch_epoch": trial.switch_epoch, **kept}, lambda r: key.items() <= r.items())
        for epochs in {trial.epochs, *self.trunks(trial)}:
            shutil.rmtree(self.folder(trial, epochs), ignore_errors=True)
        accuracy = measured["validation_accuracy"]
        print(f"{trial}: {'diverged' if accuracy is None else f'{accuracy:.2f}%'}", flush=True)


def named(arms: Sequence[str]) -> list[str]:
    """The arms that are asked for, with those of a group in the place of its name."""
    return list(dict.fromkeys(arm for name in arms for arm in GROUPS.get(name, (name,))))


def main() -> None:
    options = arguments().parse_args()
    options.arms = named(options.arms)
    records = Records(options.results / RECORDS)
    if options.table:
        print(table(records.records))
    elif options.data is None:
        raise SystemExit("give --data, the folder with CIFAR-10's binary version, or --table")
    else:
        undone = Search(records, options).do()
        if undone.failed or undone.waiting:
            waiting = f", {len(undone.waiting)} wait for a parent that is not there" if undone.waiting else ""
            raise SystemExit(f"{len(undone.failed)} trials failed{waiting}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder, help="folder with CIFAR-10's binary version")
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *GROUPS], default=list(ARMS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="SEED")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="another length scales the whole schedule")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="trials at once")
    parser.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--eager", action="store_true", help="do not compile the training step")
    parser.add_argument("--table", action="store_true", help="print the results")
    parser.add_argument("--work", type=folder, default="runs/planner_search", help="folder for checkpoints")
    parser.add_argument("--results", type=folder, default=RESULTS, help="folder for results")
    return parser


if __name__ == "__main__":
    main()
