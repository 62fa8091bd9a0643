"""Try ways to plan and to switch against each other on WideResNet-20, cheaply: 20 epochs, on the validation split only.

    python benchmarks/planner_search.py --data DIR --together 6 --time-limit 1700
    python benchmarks/planner_search.py --data DIR --arms "plain directions" taylor --seeds 0 1 2
    python benchmarks/planner_search.py --data DIR --arms promising             # those of PROMISING, in that order
    python benchmarks/planner_search.py --table                # differences from a narrower network, from the results

An arm is one line of ARMS below: a name, and what it changes in the settings of the first arm, or a switch of its own.
Runs of one seed fork from one parent, but for plain narrower networks, which are trained from scratch; they are added
to benchmarks/results/planner_search.json as they finish and are skipped when they are there.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pcn.training import Settings
from peers import RESULTS
from peers.intervals import paired_difference
from peers.late_changes import BasisTrainedFirst, Rewhitened, SizedByWeights, TwoCuts
from peers.one_run import UNWATCHED, Job, run
from peers.parents import PARENTS
from peers.processes import run_each
from peers.report import by_seed, markdown, mean
from records import Record, Records

PARENT, TARGET, EPOCHS, SWITCH = "wide_resnet20", 1_094_154, 20, 2
NARROW_FLOPS = 326_830_592  # per sample, of the narrower network with as many parameters
SEEDS = (0, 1, 2, 3, 4)
NOTHING = "No trial of the search is recorded yet."
NARROW = {"model": "peers.networks:narrow"}
WHITENED = {"precondition": 1.0}
AS_TRAINED = {**WHITENED, "analysis_mode": "batch"}  # batch norm in the look as in training: running statistics lag
SIZED = {**AS_TRAINED, "switch": SizedByWeights}
ARMS: dict[str, dict[str, Any]] = {
    "plain directions": {},
    "narrow": NARROW,
    "narrow, decay 5e-4": {**NARROW, "weight_decay": 5e-4},
    "paper's ranks": {"params": None, "pcn": "wide_resnet20-pcn1"},
    "taylor": {"worth": "taylor"},
    "divergence": {"worth": "divergence"},
    "two-sided": {"two_sided": True},
    "two-sided, taylor": {"two_sided": True, "worth": "taylor"},
    "two-sided, half and half": {"params": None, "rank": "0.5", "output_rank": 0.5, "exclude": ("conv1", "fc")},
    "precondition 1/4": {"precondition": 0.25},
    "precondition 1/2": {"precondition": 0.5},
    "precondition 1/2, taylor": {"precondition": 0.5, "worth": "taylor"},
    "precondition 3/4": {"precondition": 0.75},
    "precondition 3/4, taylor": {"precondition": 0.75, "worth": "taylor"},
    "precondition 1": WHITENED,
    "precondition 1, taylor": {**WHITENED, "worth": "taylor"},
    "precondition 1, divergence": {**WHITENED, "worth": "divergence"},
    "batch statistics, taylor": {"analysis_mode": "batch", "worth": "taylor"},
    "batch statistics, precondition 1": AS_TRAINED,
    "batch statistics, precondition 1, taylor": {**AS_TRAINED, "worth": "taylor"},
    "batch statistics, precondition 1, divergence": {**AS_TRAINED, "worth": "divergence"},
    "batch statistics, precondition 1, paper's ranks": {**AS_TRAINED, "params": None, "pcn": "wide_resnet20-pcn1"},
    "batch statistics, precondition 1, switch after 4, taylor": {**AS_TRAINED, "worth": "taylor", "switch_at": "4"},
    "batch statistics, precondition 1, switch after 8, taylor": {**AS_TRAINED, "worth": "taylor", "switch_at": "8"},
    "batch statistics, precondition 1, switch after 12, taylor": {  # two epochs after the rate's first drop
        **AS_TRAINED,
        "worth": "taylor",
        "switch_at": "12",
    },
    "batch statistics, precondition 1, whitened again every 3 epochs, taylor": {
        **AS_TRAINED,
        "worth": "taylor",
        "switch": partial(Rewhitened, every=3),
    },
    "batch statistics, precondition 1, dropped part kept, taylor": {
        **AS_TRAINED,
        "worth": "taylor",
        "keep_dropped": True,
    },
    "batch statistics, precondition 1, balanced basis, taylor": {**AS_TRAINED, "basis": "balanced", "worth": "taylor"},
    "batch statistics, precondition 1, decay 5e-4, taylor": {**AS_TRAINED, "worth": "taylor", "weight_decay": 5e-4},
    "sized by weights, taylor": {**SIZED, "worth": "taylor"},  # these with batch statistics and precondition 1
    "sized by weights, paper's ranks": {**SIZED, "params": None, "pcn": "wide_resnet20-pcn1"},
    "sized by weights, narrow's operations, taylor": {**SIZED, "worth": "taylor", "flops": NARROW_FLOPS},
    "precondition 1, paper's ranks": {**WHITENED, "params": None, "pcn": "wide_resnet20-pcn1"},
    "precondition 1, response basis": {**WHITENED, "basis": "response"},
    "precondition 1, balanced basis": {**WHITENED, "basis": "balanced"},
    "precondition 1, balanced basis, taylor": {**WHITENED, "basis": "balanced", "worth": "taylor"},
    "precondition 1, random basis": {**WHITENED, "basis": "random"},
    "precondition 1, two-sided, taylor": {**WHITENED, "two_sided": True, "worth": "taylor"},
    "precondition 1, fades over 1 epoch": {**WHITENED, "fade_epochs": 1.0},
    "precondition 1, decay 5e-4": {**WHITENED, "weight_decay": 5e-4},
    "precondition 1, switch after 4": {**WHITENED, "switch_at": "4"},
    "precondition 1, fresh optimizer, taylor": {**WHITENED, "worth": "taylor", "carry_state": False},
    "precondition 1, decay 5e-4, taylor": {**WHITENED, "worth": "taylor", "weight_decay": 5e-4},
    "precondition 1, switch after 1, taylor": {**WHITENED, "worth": "taylor", "switch_at": "1"},
    "precondition 1, switch after 4, taylor": {**WHITENED, "worth": "taylor", "switch_at": "4"},
    "precondition 1, dropped part kept, frozen, taylor": {**WHITENED, "worth": "taylor", "keep_dropped": True},
    "precondition 1, narrow's operations, taylor": {**WHITENED, "worth": "taylor", "flops": NARROW_FLOPS},
    "precondition 1, drops channels": {**WHITENED, "drop_channels": True},
    "fades over 1 epoch": {"fade_epochs": 1.0},
    "fades over 3 epochs": {"fade_epochs": 3.0},
    "response basis": {"basis": "response"},
    "response basis, taylor": {"basis": "response", "worth": "taylor"},
    "random basis": {"basis": "random"},
    "dropped part kept, frozen": {"keep_dropped": True},
    "fresh optimizer": {"carry_state": False},
    "fresh optimizer, no decay": {"carry_state": False, "weight_decay": 0.0},  # a carried one keeps its decay
    "precondition 1/2, no decay": {"precondition": 0.5, "carry_state": False, "weight_decay": 0.0},
    "batch norm recalibrated": {"recalibrate": True},
    "basis trained": {"train_basis": True},
    "two cuts": {"carry_state": False, "switch": partial(TwoCuts, first=0.5, again_at=5)},  # beside fresh optimizer
    "basis trained to epoch 5": {"carry_state": False, "switch": partial(BasisTrainedFirst, again_at=5)},
    "precondition 1, basis trained to epoch 5, taylor": {
        **WHITENED,
        "worth": "taylor",
        "carry_state": False,
        "switch": partial(BasisTrainedFirst, again_at=5),
    },
    "decay 5e-4": {"weight_decay": 5e-4},
    "switch after 1": {"switch_at": "1"},
    "switch after 4": {"switch_at": "4"},
    "switch after 8": {"switch_at": "8"},
}
PROMISING = (  # to be tried first
    "narrow",
    "batch statistics, precondition 1, taylor",
    "batch statistics, precondition 1, switch after 12, taylor",
    "batch statistics, precondition 1, whitened again every 3 epochs, taylor",
    "batch statistics, precondition 1, switch after 4, taylor",
    "batch statistics, precondition 1, switch after 8, taylor",
    "sized by weights, taylor",
    "batch statistics, precondition 1",
    "sized by weights, paper's ranks",
    "sized by weights, narrow's operations, taylor",
    "precondition 1, taylor",
    "batch statistics, taylor",
    "batch statistics, precondition 1, dropped part kept, taylor",
    "batch statistics, precondition 1, balanced basis, taylor",
    "batch statistics, precondition 1, divergence",
    "batch statistics, precondition 1, decay 5e-4, taylor",
    "narrow, decay 5e-4",  # beside the one above
    "precondition 1, narrow's operations, taylor",
    "precondition 1, two-sided, taylor",
    "precondition 1, basis trained to epoch 5, taylor",
)
FIELDS = (
    "trainable_params",
    "total_params",
    "flops_per_sample",
    "validation_after_switch",
    "validation_accuracy",
    "switch_seconds",
)


@dataclass(frozen=True)
class Trunk:
    """The parent on one seed, up to a switch: what the trials with that switch fork from."""

    seed: int
    epochs: int
    weight_decay: float | None = None  # the recipe's, where none is given


@dataclass(frozen=True)
class Trial:
    """One arm on one seed."""

    arm: str
    seed: int

    @property
    def trunk(self) -> Trunk | None:
        """What the trial forks from, unless it is trained from scratch."""
        arm = ARMS[self.arm]
        if "model" in arm:
            return None
        decay = None if arm.get("carry_state") is False else arm.get("weight_decay")
        return Trunk(self.seed, int(arm.get("switch_at", SWITCH)), decay)


def settings(item: Trunk | Trial, data: Path) -> Settings:
    """The parent's recipe, with the planner's switch and what the arm changes."""
    base = replace(PARENTS[PARENT].recipe(item.seed, EPOCHS, data), **UNWATCHED)
    if isinstance(item, Trunk):
        decay = base.weight_decay if item.weight_decay is None else item.weight_decay
        return replace(base, epochs=item.epochs, weight_decay=decay)
    changes = {name: value for name, value in ARMS[item.arm].items() if name != "switch"}
    if item.trunk is None:
        options = {"parent": base.model, "options": base.model_options, "target": TARGET}
        return replace(base, model_options=options, **changes)
    usual = {"params": TARGET, "switch_at": str(SWITCH), "precondition": 0.0, "analysis_mode": "eval"}
    return replace(base, **{**usual, **changes})


class Search:
    """The trials that were asked for and the results so far."""

    def __init__(self, records: Records, options: argparse.Namespace) -> None:
        self.records, self.options = records, options
        self.deadline = time.time() + options.time_limit

    def left(self) -> list[Trunk | Trial]:
        """What is left to do, seed by seed, each trunk before its first trial."""
        found = [Trial(arm, seed) for seed in self.options.seeds for arm in self.options.arms]
        trials = [trial for trial in found if not self.records.has(arm=trial.arm, seed=trial.seed)]
        items = dict.fromkeys(item for trial in trials for item in (trial.trunk, trial) if item is not None)
        return [item for item in items if isinstance(item, Trial) or not self.trunk_file(item).exists()]

    def do(self) -> list[Trunk | Trial]:
        """Do what is left; return what failed."""
        return run_each(
            self.left(),
            lambda item: (run, self.job(item)),
            self.finished,
            together=self.options.together,
            until=self.deadline,
            ready=lambda item, running: self.ready(item),
        )

    def ready(self, item: Trunk | Trial) -> bool:
        return isinstance(item, Trunk) or item.trunk is None or self.trunk_file(item.trunk).exists()

    def job(self, item: Trunk | Trial) -> Job:
        trunk = item if isinstance(item, Trunk) else item.trunk
        return Job(
            str(item),
            settings(item, self.options.data),
            self.folder(item),
            trunk=None if trunk is None else self.trunk_file(trunk),
            trunk_epoch=0 if trunk is None else trunk.epochs,
            make_switch=None if isinstance(item, Trunk) else ARMS[item.arm].get("switch"),
            reads_test=False,
            compiled=torch.cuda.is_available() and not self.options.eager,
            deadline=self.deadline,
        )

    def trunk_file(self, trunk: Trunk) -> Path:
        decay = "" if trunk.weight_decay is None else f"-decay{trunk.weight_decay:g}"
        return self.options.work / "trunks" / f"seed{trunk.seed}-epochs{trunk.epochs}{decay}.pt"

    def folder(self, item: Trunk | Trial) -> Path:
        if isinstance(item, Trunk):
            return self.options.work / self.trunk_file(item).stem
        name = re.sub(r"\W+", "-", item.arm)
        return self.options.work / f"{name}-seed{item.seed}"

    def finished(self, item: Trunk | Trial, measured: Record | None) -> None:
        if measured is None:
            return
        if isinstance(item, Trial):
            kept = {name: measured[name] for name in FIELDS}
            self.records.add({"arm": item.arm, "seed": item.seed, "epochs": EPOCHS, **kept})
        shutil.rmtree(self.folder(item), ignore_errors=True)
        print(f"{item}: {measured['validation_accuracy']:.2f}%", flush=True)


def table(records: Sequence[Record]) -> str:
    """A row for each arm: its validation accuracy, and the paired difference from a plain narrower network."""
    if not records:
        return NOTHING
    by_arm = {arm: [r for r in records if r["arm"] == arm] for arm in ARMS}
    head = ["arm", "runs", "trainable", "after the switch (%)", "validation (%)", "minus narrow (95%)"]
    return markdown(head, [_row(arm, runs, by_arm["narrow"]) for arm, runs in by_arm.items() if runs])


def _row(arm: str, runs: list[Record], narrow: list[Record]) -> list[str]:
    name = "validation_accuracy"
    beside = None if runs is narrow or not narrow else by_seed(narrow, name)
    difference = None if beside is None else paired_difference(by_seed(runs, name), beside)
    return [
        arm,
        str(len(runs)),
        f"{mean(runs, 'trainable_params'):,.0f}",
        _after_switch(runs),
        f"{statistics.fmean(r[name] for r in runs):.2f}",
        "" if difference is None else str(difference),
    ]


def _after_switch(runs: list[Record]) -> str:
    name = "validation_after_switch"
    return f"{mean(runs, name):.2f}" if all(r[name] is not None for r in runs) else ""


def named(arms: Sequence[str]) -> list[str]:
    """The arms that are asked for, with the promising ones in the place of their group's name."""
    return list(dict.fromkeys(arm for name in arms for arm in (PROMISING if name == "promising" else (name,))))


def main() -> None:
    options = arguments().parse_args()
    options.arms = named(options.arms)
    records = Records(options.results)
    if options.table:
        print(table(records.records))
    elif options.data is None:
        raise SystemExit("give --data, the folder with CIFAR-10's binary version, or --table")
    elif failed := Search(records, options).do():
        raise SystemExit(f"{len(failed)} trials failed")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10's binary version")
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, "promising"], default=list(ARMS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="SEED")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="trials at once")
    parser.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--eager", action="store_true", help="do not compile the training step")
    parser.add_argument("--table", action="store_true", help="print the results")
    parser.add_argument("--work", type=Path, default=Path("runs/planner_search"), help="folder for checkpoints")
    parser.add_argument("--results", type=Path, default=RESULTS / "planner_search.json")
    return parser


if __name__ == "__main__":
    main()
