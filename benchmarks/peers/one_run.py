"""One run of a comparison: trained, stopped at a deadline and taken up again, and what was measured of it."""

from __future__ import annotations

import copy
import io
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from pcn.costs.count import flops_per_sample
from pcn.errors import ConfigError
from pcn.training import RunFolder, Settings, Trainer, load_data, world
from pcn.training.meter import plus
from pcn.training.state import take
from pcn.training.step import training_dtype
from pcn.whole_files import write_whole
from peers.trainer import MakeSwitch, PeerTrainer, Unread
from records import Record, commit_at_start, commits_of

UNWATCHED = {"measure_every": 0, "checkpoint_every": 10}  # settings of every run: nothing that only takes time
MEBIBYTE = 2**20
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
    "switch_seconds",
    "peak_mib",
)


@dataclass(frozen=True)
class Job:
    """What is trained and where its files are.

    ``trunk`` is a file with a parent's state that the run forks from, where it is there and was ``compiled`` or not as
    the run is; ``leaves`` are files to which the run writes such states, unless they are there, by the epochs that they
    come after. A run that is measured ``solo`` does everything itself, compilation from an empty cache too.
    ``make_switch`` gives a trainer the switch of another method; ``plan_file`` is where the plan of ours goes.
    """

    name: str
    settings: Settings
    folder: Path
    trunk: Path | None = None
    leaves: Mapping[int, Path] = field(default_factory=dict)
    make_switch: MakeSwitch | None = None
    plan_file: Path | None = None
    solo: bool = False
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
        seen = folder.metrics()

        def tell(record: Record) -> None:
            seen.append(record)
            after_event(job, trainer, seen)

        seen_data = data if job.reads_test else Unread(data)
        how = {"world": here, "compiled": job.compiled, "fused": job.fused, "begun": commit}
        trainer = PeerTrainer(job.settings, seen_data, folder, make_switch=job.make_switch, tell=tell, **how)
        fresh = not any((job.folder / "checkpoints").glob("*.pt"))
        forks = fresh and not job.solo and job.trunk is not None and trainer.switch is not None
        if forks and (state := read_trunk(job.trunk, job.compiled, here.device)) is not None:
            seen.append({"event": "trunk", "step": 0, "peak_memory_bytes": state["peak_memory_bytes"]})
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
        return {**measured(job, trainer, result, seen), **origin(job)}


def after_event(job: Job, trainer: Trainer, seen: list[Record]) -> None:
    """Write the trunk and the plan when their time has come, and say how the run goes."""
    record = seen[-1]
    if record["event"] == "epoch" and record["epoch"] in job.leaves and trainer.progress.switch_epoch is None:
        write_trunk(job.leaves[record["epoch"]], trainer, {"peak_memory_bytes": peak_bytes(seen), **origin(job)})
    if record["event"] == "switch" and job.plan_file is not None:
        job.plan_file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(job.plan_file, trainer.switch.plan.to_json().encode())
    if record["event"] in ("epoch", "switch"):
        print(f"{job.name}: {record['event']} {record['epoch']} {record['validation_accuracy']:.2f}%", flush=True)


def write_trunk(path: Path, trainer: Trainer, known: Record) -> None:
    """Write a state for others to fork from, with what is known of its run, unless there is one of the kind."""
    if read_trunk(path, known["compiled"], torch.device("cpu")) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        # Before a switch there is nothing in its state, and its form is each method's own.
        torch.save({**take(trainer), "switch": None, **known}, buffer)
        write_whole(path, buffer.getvalue())


def read_trunk(path: Path, compiled: bool, device: torch.device) -> Record | None:
    """Read a state to fork from; None where there is none that says which code trained it, compiled or not as asked."""
    if not path.exists():
        return None
    state = torch.load(path, map_location=device, weights_only=True)
    return state if "commit" in state and state.get("compiled") is compiled else None


def trunk_name(name: str, compiled: bool) -> str:
    """Name a trunk's file by how it is trained, so that no run finds one that is not compiled as it is."""
    return f"{name}-{'compiled' if compiled else 'eager'}.pt"


def folder_name(name: str, compiled: bool) -> str:
    """Name a run's folder: one that is stopped is not taken up again in another way than it began in."""
    return name if compiled else f"{name}-eager"


def measured(job: Job, trainer: PeerTrainer, result: Record, seen: list[Record]) -> Record:
    """What a finished run is known by; seconds and joules only where it had the machine to itself."""
    model, example = copy.deepcopy(trainer.model).cpu(), next(iter(trainer.calibration()))[:1].cpu()
    parts = ("train_seconds", "setup_seconds", "switch_seconds")
    seconds = sum(result[name] or 0.0 for name in parts)
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
        "train_seconds": seconds if job.solo else None,
        "energy_j": plus(result["energy_j"], trainer.side_j) if job.solo else None,
        "switch_seconds": result["switch_seconds"],
        "peak_mib": None if peak is None else peak / MEBIBYTE,
    }


def origin(job: Job) -> Record:
    """Which code a run that has begun was trained by, and how."""
    return {"commit": commits_of(job.folder, commit_at_start()), "compiled": job.compiled}


def peak_bytes(seen: list[Record]) -> int | None:
    """The most memory of any epoch, those of the trunk included; None where none was measured."""
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
