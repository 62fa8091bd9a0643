"""One run of a comparison: trained, stopped at a deadline and taken up again, and what was measured of it."""

from __future__ import annotations

import copy
import io
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from unittest import mock

import torch

from pcn.costs.count import flops_per_sample
from pcn.errors import ConfigError, DataError
from pcn.fusion.fuse import unfuse_
from pcn.training import RunFolder, Settings, Trainer, load_data, world
from pcn.training.meter import plus
from pcn.training.run_folder import METRICS, parse_metrics
from pcn.training.state import take
from pcn.training.step import training_dtype
from pcn.whole_files import write_whole
from peers.device_turns import Turn
from peers.trainer import MakeSwitch, PeerTrainer, Unread
from records import Record, commit_at_start, commits_of

TOLD_EVERY = 10  # epochs: many runs speak at once
UNWATCHED = {"measure_every": 0, "checkpoint_every": 10}  # settings of every run: nothing that only takes time
MEBIBYTE = 2**20
TIMED_EPOCHS = 5  # of the network that is compared, which all of its others are taken to be like
PLAN = "first_plan.json"  # in a run's folder: as it was decided, before anything is fused
OUTCOME = (  # what is measured of a run
    "trainable_params",
    "total_params",
    "flops_per_sample",
    "test_accuracy",
    "validation_accuracy",
    "validation_after_switch",
    "first_loss",
    "last_loss",
    "train_seconds",
    "energy_j",
    "timed_epochs",
    "last_epochs_s",
    "switch_seconds",
    "peak_mib",
)


def check_data(settings: Settings) -> None:
    """Read the data once before many processes do, and end with one sentence where they are not there."""
    try:
        load_data(settings, torch.device("cpu"), torch.float32)
    except DataError as error:
        raise SystemExit(f"--data: {error}") from error


@dataclass(frozen=True)
class Job:
    """What is trained and where its files are.

    ``trunk`` is a file with a parent's state that the run forks from, where it is there and was ``compiled`` or not as
    the run is; ``leaves`` are files to which the run writes such states, unless they are there, by the epochs that they
    come after. A run that is measured ``solo`` does everything itself, compilation from an empty cache too, and has the
    device to itself, but for compilation, by the file of ``turns``. Its ``settings`` may have fewer than the
    ``whole_epochs`` of a run, whose seconds and joules are worked out then.
    ``make_switch`` gives a trainer the switch of another method; a run that ``keeps_plan`` says what ours has planned.
    """

    name: str
    settings: Settings
    folder: Path
    trunk: Path | None = None
    leaves: Mapping[int, Path] = field(default_factory=dict)
    make_switch: MakeSwitch | None = None
    keeps_plan: bool = False
    solo: bool = False
    turns: Path | None = None
    whole_epochs: int | None = None
    reads_test: bool = True
    compiled: bool = False
    fused: bool = False
    deadline: float = math.inf


def run(job: Job) -> Record | None:
    """Train to the end and say what was measured, or return None when time runs out before."""
    if time.time() > job.deadline:
        return None
    commit = partial(commits_of, job.folder, commit_at_start())
    with world() as here, ExitStack() as stack:
        if job.solo:  # in one go, or parts of it would be counted twice or not at all
            shutil.rmtree(job.folder, ignore_errors=True)
            stack.enter_context(empty_compiler_cache())
        data = load_data(job.settings, here.device, training_dtype(here.device))
        folder = stack.enter_context(RunFolder(job.folder, job.settings))
        seen, ends = folder.metrics(), list[float]()

        def tell(record: Record) -> None:
            seen.append(record)
            if record["event"] == "epoch":
                ends.append(time.time())
            after_event(job, trainer, seen)

        seen_data = data if job.reads_test else Unread(data)
        how = {"world": here, "compiled": job.compiled, "fused": job.fused, "begun": commit, "tell": tell}
        turn = None if job.turns is None else Turn(job.turns, waits=(job.folder / METRICS).touch)
        trainer = PeerTrainer(job.settings, seen_data, folder, make_switch=job.make_switch, turn=turn, **how)
        fresh = not any((job.folder / "checkpoints").glob("*.pt"))
        forks = fresh and not job.solo and job.trunk is not None and trainer.switch is not None
        if forks and (state := read_trunk(job.trunk, job.compiled, here.device)) is not None:
            seen.append({"event": "trunk", "step": 0, "peak_memory_bytes": state["step_peak_bytes"]})
            folder.begin()
            folder.log(seen[-1])
            commits_of(job.folder, state["commit"])  # the first epochs are the run's own too
            trainer.branch_(state)
        elif forks and job.trunk.exists():
            print(f"{job.name}: trains its first epochs itself, {job.trunk} is of another or unknown kind", flush=True)
        result = trainer.run(job.deadline)
        if result is None:
            print(f"{job.name}: stops after epoch {trainer.progress.epoch}, its time is up", flush=True)
            return None
        own = {"plan": kept_plan(job), "epochs_trained": len(ends), "epoch_seconds": usual_gap(ends)}
        return {**measured(job, trainer, result, seen), **origin(job), **own}


def attempt(job: Job) -> Record | None:
    """Do a run; of one that diverges nothing is known but that, and one that is only timed again has failed."""
    try:
        return run(job)
    except ConfigError as error:
        if not diverged(error) or job.solo:
            raise
        return {**dict.fromkeys(OUTCOME), **origin(job), "plan": kept_plan(job), "epoch_seconds": None}


def epochs_seen(folder: Path) -> int:
    """How far a run with a checkpoint has come."""
    if not any((folder / "checkpoints").glob("*.pt")):
        return 0
    seen = parse_metrics((folder / METRICS).read_text())
    return max((record["epoch"] for record in seen if record["event"] == "epoch"), default=0)


def usual_gap(times: Sequence[float]) -> float | None:
    """The time from one to the next, where most are alike: epochs in which something is compiled do not count.

    >>> usual_gap([60.0, 67.0, 74.0, 120.0, 127.0]), usual_gap([60.0])
    (7.0, None)
    """
    gaps = [after - before for before, after in pairwise(times)]
    return median(gaps) if gaps else None


def after_event(job: Job, trainer: Trainer, seen: list[Record]) -> None:
    """Write the trunk and the plan when their time has come, and say how the run goes."""
    record = seen[-1]
    if record["event"] == "epoch" and record["epoch"] in job.leaves and trainer.progress.switch_epoch is None:
        write_trunk(job.leaves[record["epoch"]], trainer, {"step_peak_bytes": peak_bytes(seen), **origin(job)})
    if record["event"] == "switch" and job.keeps_plan:
        write_whole(job.folder / PLAN, trainer.switch.plan.to_json().encode())
    told = record["event"] == "epoch" and record["epoch"] % TOLD_EVERY == 0
    if told or record["event"] == "switch":
        print(f"{job.name}: {record['event']} {record['epoch']} {record['validation_accuracy']:.2f}%", flush=True)


def kept_plan(job: Job) -> str | None:
    """The plan that a run has made, as JSON, where it is to be kept and the run has come that far."""
    file = job.folder / PLAN
    return file.read_text() if job.keeps_plan and file.exists() else None


def write_trunk(path: Path, trainer: Trainer, known: Record) -> None:
    """Write a state for others to fork from, with what is known of its run, unless there is one of the kind."""
    if read_trunk(path, known["compiled"], torch.device("cpu")) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        # Before a switch there is nothing in its state, and its form is each method's own.
        torch.save({**take(trainer), "switch": None, **known}, buffer)
        write_whole(path, buffer.getvalue())


def read_trunk(path: Path, compiled: bool, device: torch.device) -> Record | None:
    """Read a state to fork from; None where there is none that says what trained it, compiled or not as asked."""
    if not path.exists():
        return None
    state = torch.load(path, map_location=device, weights_only=True)
    known = {"commit", "step_peak_bytes"} <= state.keys()
    return state if known and state.get("compiled") is compiled else None


def trunk_name(name: str, compiled: bool) -> str:
    """Name a trunk's file by how it is trained, so that no run finds one that is not compiled as it is."""
    return f"{name}-{'compiled' if compiled else 'eager'}.pt"


def folder_name(name: str, compiled: bool) -> str:
    """Name a run's folder: one that is stopped is not taken up again in another way than it began in."""
    return name if compiled else f"{name}-eager"


def measured(job: Job, trainer: PeerTrainer, result: Record, seen: list[Record]) -> Record:
    """What a finished run is known by; seconds and joules only where it had the machine to itself."""
    model, example = copy.deepcopy(trainer.model).cpu(), next(iter(trainer.calibration()))[:1].cpu()
    unfuse_(model)  # operations are the method's, not those of the form in which a GPU is fastest
    seconds, energy_j = whole_run(job, trainer, result, seen) if job.solo else (None, None)
    peak = peak_bytes(seen)
    switched = [r["validation_accuracy"] for r in seen if r["event"] == "switch"]
    losses = {r["epoch"]: r["loss"] for r in seen if r["event"] == "epoch"}
    return {
        "trainable_params": result["trainable_params"],
        "total_params": result["total_params"],
        "flops_per_sample": flops_per_sample(model, example),
        "test_accuracy": result["test_accuracy"] if job.reads_test else None,
        "validation_accuracy": result["validation_accuracy"],
        "validation_after_switch": switched[0] if switched else None,
        "first_loss": losses.get(1),  # of the first epoch, where wide networks may stumble
        "last_loss": losses.get(job.settings.epochs),
        "train_seconds": seconds,
        "energy_j": energy_j,
        "timed_epochs": job.settings.epochs if job.solo else None,
        "last_epochs_s": last_epochs(job, seen, "train_seconds") if job.solo else None,
        "switch_seconds": result["switch_seconds"],
        "peak_mib": None if peak is None else peak / MEBIBYTE,
    }


def whole_run(job: Job, trainer: PeerTrainer, result: Record, seen: list[Record]) -> tuple[float, float | None]:
    """Seconds and joules of a whole run, switch included: epochs not trained are as the last few usually were.

    These are the network's that is compared, behind its switch or its first epoch; the median, as one of them may have
    met what another process has to do on the device to make its step. Seconds are those of setting up as well, joules
    are not: the device has little to do while a processor compiles, and others may have it.
    """
    missing = (job.whole_epochs or job.settings.epochs) - job.settings.epochs
    seconds = sum(result[name] or 0.0 for name in ("train_seconds", "setup_seconds", "switch_seconds"))
    energy_j = plus(result["energy_j"], trainer.switch_j)
    if missing == 0:
        return seconds, energy_j
    epochs_s, epochs_j = (last_epochs(job, seen, name) for name in ("train_seconds", "energy_j"))
    assert epochs_s is not None  # a clock is always there
    more_j = None if epochs_j is None else missing * median(epochs_j)
    return seconds + missing * median(epochs_s), plus(energy_j, more_j)


def last_epochs(job: Job, seen: list[Record], name: str) -> list[float] | None:
    """What each of the last few epochs took of something that is counted up; None where nobody counted."""
    first = job.settings.epochs - TIMED_EPOCHS
    ends = [record[name] for record in seen if record["event"] == "epoch" and record["epoch"] >= first]
    return None if None in ends else [after - before for before, after in pairwise(ends)]


def origin(job: Job) -> Record:
    """Which code a run that has begun was trained by, and how."""
    return {"commit": commits_of(job.folder, commit_at_start()), "compiled": job.compiled, "fused": job.fused}


def peak_bytes(seen: list[Record]) -> int | None:
    """The most memory of the steps of any epoch, those of the trunk included; None where none was measured."""
    return max((r["peak_memory_bytes"] for r in seen if r.get("peak_memory_bytes") is not None), default=None)


def diverged(error: ConfigError) -> bool:
    """Whether a run was given up because its loss was no number any more."""
    return str(error).startswith("the loss is")


@contextmanager
def empty_compiler_cache() -> Iterator[None]:
    """Have torch.compile, and Triton for kernels that are not torch.compile's, find nothing from earlier runs."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the compiler's processes may still write
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        with mock.patch.dict(os.environ, caches):
            yield
