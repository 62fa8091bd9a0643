"""What the experiments share: a run by its settings, stopped at a deadline and taken up again, and its record."""

from __future__ import annotations

import argparse
import io
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from jobs import run_all
from pcn.training import RunFolder, Settings, Trainer, load_data, world
from pcn.training.state import take
from pcn.training.step import training_dtype
from pcn.whole_files import write_whole
from records import Record, Records, commit_at_start, commits_of


@dataclass(frozen=True)
class Job:
    """One run: what is trained, where its files are, and when it has to stop (seconds since the epoch of time).

    ``trunk`` is a file with the state after the epochs that runs with other switches share: the first run to get there
    writes it, the others take it.
    """

    network: str
    settings: Settings
    folder: Path | None = None
    trunk: Path | None = None
    trunk_epoch: int = 0
    shared: bool = False
    compiled: bool = False
    fused: bool = False  # principal component layers and what stands before them in one pass
    deadline: float = math.inf
    each_epoch: Callable[[Trainer], Record] | None = None  # measured after every epoch, a list in the record
    at_the_end: Callable[[Trainer], Record] | None = None  # measured once, added to the record
    summary: Callable[[Record], Record] | None = None  # what of all that is kept
    make_trainer: Callable[..., Trainer] = Trainer  # for one with a switch of its own

    def say(self, text: str) -> None:
        print(f"{self.network} seed {self.settings.seed} {text}", flush=True)


def run(job: Job) -> Record | None:
    """Train to the end and return the record, or None when time runs out before."""
    if time.time() > job.deadline:
        return None
    commit = partial(commits_of, job.folder, commit_at_start())
    with world() as here, ExitStack() as stack:
        data = load_data(job.settings, here.device, training_dtype(here.device))
        folder = None if job.folder is None else stack.enter_context(RunFolder(job.folder, job.settings))
        seen: list[Record] = [] if folder is None else folder.metrics()
        curve: list[Record] = []

        def tell(record: Record) -> None:
            seen.append(record)
            if record["event"] != "dimensions":
                job.say(describe(record))
            if record["event"] == "epoch":
                if record["epoch"] == job.trunk_epoch:
                    write_trunk(job.trunk, trainer)
                if job.each_epoch is not None:
                    curve.append({"epoch": record["epoch"], **job.each_epoch(trainer)})

        how = {"world": here, "compiled": job.compiled, "fused": job.fused}
        trainer = job.make_trainer(job.settings, data, folder, begun=commit, tell=tell, **how)
        fresh = folder is None or not any((folder.path / "checkpoints").glob("*.pt"))
        if fresh and job.trunk is not None and job.trunk.exists() and trainer.switch is not None:
            trainer.branch_(torch.load(job.trunk, map_location=here.device, weights_only=True))
        result = trainer.run(job.deadline)
    if result is None:
        job.say(f"stops after epoch {trainer.progress.epoch}: its time is up")
        return None
    record = make_record(job, result, seen, commit())
    if job.each_epoch is not None:
        record["curve"] = curve
    if job.at_the_end is not None:
        record |= job.at_the_end(trainer)
    return record if job.summary is None else job.summary(record)


def write_trunk(path: Path | None, trainer: Trainer) -> None:
    if path is not None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(take(trainer), buffer)
        write_whole(path, buffer.getvalue())


def make_record(job: Job, result: Record, seen: Sequence[Record], commit: str | None) -> Record:
    settings = job.settings
    measured = ("train_seconds", "energy_j", "setup_seconds", "switch_seconds")
    switched = next((record for record in seen if record["event"] == "switch"), None)
    ends = [r for r in seen if r["event"] in ("epoch", "branched")]
    before = [r["validation_accuracy"] for r in ends if r["epoch"] == result["switch_epoch"]]
    return {
        "network": job.network,
        "seed": settings.seed,
        "epochs": settings.epochs,
        "switch_epoch": result["switch_epoch"],
        **{name: result[name] for name in ("total_params", "trainable_params", "test_accuracy")},
        "validation_accuracy": result["validation_accuracy"],
        "train_loss": next((r["loss"] for r in reversed(seen) if r["event"] == "epoch"), None),  # of the last epoch
        **({"epoch_of_best_validation": result["best_epoch"]} if settings.keep_best or settings.patience else {}),
        **{name: None if job.shared else result[name] for name in measured},
        "validation_before_switch": before[0] if before else None,
        "validation_after_switch": None if switched is None else switched["validation_accuracy"],
        "first_epochs_from_parent": result["branched"],
        "optimizer_state": None if switched is None else "carried" if settings.carry_state else "reset",
        "commit": commit,
    }


def describe(record: Record) -> str:
    """One line about what happened in a run; an event that has no words of its own is named."""
    match record["event"]:
        case "epoch":
            return f"epoch {record['epoch']} loss {record['loss']:.4f} validation {record['validation_accuracy']:.2f}%"
        case "resumed":
            return f"goes on after epoch {record['epoch']}"
        case "branched":
            return f"branches off its parent after epoch {record['epoch']}"
        case "fade":
            return "begins to fade"
        case "switch":
            return (
                f"switches in {record['seconds']:.1f} s to {record['trainable_after']:,} trainable parameters: "
                f"validation {record['validation_accuracy']:.2f}% after"
            )
        case "ready":
            return f"has its step ready in {record['seconds']:.1f} s"
        case other:
            return f"{other} after epoch {record['epoch']}"


def run_jobs(jobs: Sequence[Job], records: Records, options: argparse.Namespace, **more: Any) -> None:
    """Do the runs that are not in the results yet, and add each when it is done."""
    deadline = time.time() + options.time_limit
    shared = options.together > 1 or options.shared
    jobs = [replace(job, shared=shared, deadline=deadline) for job in jobs]

    def done(record: Record | None) -> None:
        if record is not None:
            records.add(record)
            accuracy = record.get("test_accuracy")
            accuracy = " is done" if accuracy is None else f": test {accuracy:.2f}%"
            print(f"{record['network']} seed {record['seed']}{accuracy}", flush=True)

    if failed := run_all(jobs, run, done, together=options.together, until=deadline, ready=trunk_ready(jobs), **more):
        raise SystemExit(f"{failed} of {len(jobs)} runs failed")


def trunk_ready(jobs: Sequence[Job]) -> Callable[[Job, Sequence[Job]], bool]:
    """Have jobs that branch off the same first epochs wait for the first of them to have done those."""
    first: dict[Path | None, Job] = {}
    for job in jobs:
        first.setdefault(job.trunk, job)

    def ready(job: Job, running: Sequence[Job]) -> bool:
        maker = first[job.trunk]
        begun = job.folder is not None and (job.folder / "checkpoints").exists()
        if job.trunk is None or job.settings.switch_at == "never" or maker is job or begun or job.trunk.exists():
            return True
        return all(maker is not other for other in running)

    return ready


def add_common_arguments(parser: argparse.ArgumentParser, networks: Sequence[str], seeds: Sequence[int]) -> None:
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--networks", nargs="+", choices=networks, default=networks, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=seeds, metavar="SEED")
    parser.add_argument("--carry-state", action="store_true", help="keep the optimizer's state at the switch")
    add_run_arguments(parser)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--together", type=int, default=1, metavar="N", help="runs at once, whose times are not kept")
    parser.add_argument("--shared", action="store_true", help="others use the GPU too, so times are not kept")
    parser.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--results", type=Path, help="results file, if not the one in experiments/results")
