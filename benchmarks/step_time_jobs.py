"""What is timed of a network, and the tasks that a process does for it: forms, compiling, timing, kernels alone."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import pcn
from pcn.fusion import Form, choose_forms, fuse_
from pcn.kernels.launch import CHOICES
from pcn.training.compiling import Forwards, compile_parts
from pcn.training.meter import Stopwatch
from pcn.training.optimizers import make_optimizer
from pcn.training.settings import Settings
from pcn.training.step import Step, autocast, start_state_, training_dtype
from step_time_energy import power_w
from step_time_floor import step_bytes
from step_time_kernels import copy_bandwidth, rows_of
from step_time_networks import Network, build
from turns import Turn

WAYS: dict[str, tuple[str, ...]] = {  # of compiling, for each part of a record; the fastest counts
    "parent": ("whole", "blocks", "combined", "tuned"),
    "pcn": ("whole", "combined", "tuned"),
    "narrow": ("whole", "blocks", "combined", "tuned"),
    "parent_our_bn": ("whole",),
    "pcn_unfused": ("blocks",),
}
CPU_WAYS = ("eager", "whole")  # of every part
STEPS = 9  # on a CPU
SETTINGS = Settings(learning_rate=0.01, momentum=0.9, weight_decay=1e-4)
Result = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    device: str
    tiny: bool
    folder: Path  # for compiled code
    forms: str = "fastest"
    roles: tuple[str, ...] = tuple(WAYS)
    stages: int | None = None
    ways: tuple[str, ...] = ("eager", "whole", "blocks")
    tuned: tuple[str, ...] = ()  # kernels whose launches are timed; all where none is named

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def launches(self) -> Path:
        return self.folder / "launches.json"


@dataclass(frozen=True)
class Job:
    network: Network
    role: str
    batch: int
    way: str
    forms: tuple[tuple[str, Form], ...] = ()  # of the layers

    @property
    def model(self) -> str:
        """What is timed: PCNs of one parent share the parent and the narrower network."""
        return self.network.name if self.role.startswith("pcn") else self.network.parent

    @property
    def part(self) -> tuple[str, str, int]:
        """The part of a record that this job measures."""
        return self.model, self.role, self.batch

    def __str__(self) -> str:
        return f"{self.model} at {self.batch}: {self.role}, {self.way}"


def work(sender: Any, task: Any, setting: Setting, *arguments: Any) -> None:
    """What a process does for a task that says what it finds."""
    start_process(setting)
    if setting.cuda:
        torch.backends.cudnn.benchmark = True
    for report in task(setting, *arguments):
        sender.send(report)


def start_process(setting: Setting) -> None:
    os.setsid()  # so that compiling processes end with this one
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(setting.folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(setting.folder / "triton")
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # a pool of them in every process has stalled; processes are many enough
    if setting.launches.exists():
        CHOICES.load(setting.launches)


def machine(setting: Setting) -> Iterator[Result]:
    device = torch.device(setting.device)
    processor = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    yield {
        "device": torch.cuda.get_device_name() if setting.cuda else processor,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pcn": pcn.__version__,
        "copy_bytes_per_s": copy_bandwidth(device),
    }


def kernel_rows(setting: Setting, batch: int, stage: tuple[int, int, int], bandwidth: float) -> Iterator[Result]:
    device = torch.device(setting.device)
    yield from rows_of(device, batch, stage, bandwidth)


class CompiledStep(Step):
    """A step compiled block by block or as a whole, perhaps with small kernels put together, or tuned; or as it is."""

    def __init__(self, way: str, *arguments: Any, **keywords: Any) -> None:
        self.way = way
        super().__init__(*arguments, **keywords)

    def _compile(self) -> Forwards:
        kernels = {"combined": self.way == "combined", "tuned": self.way == "tuned"}
        return compile_parts(self.model, whole=self.way != "blocks", **kernels)


def prepare(setting: Setting, job: Job) -> tuple[nn.Module, Tensor, Tensor]:
    """Build a model and a batch, and fuse what is to be fused."""
    device = torch.device(setting.device)
    model = build(job.network, job.role, device)
    generator = torch.Generator(device).manual_seed(0)
    images = torch.randn(job.batch, *job.network.shape, device=device, generator=generator).to(training_dtype(device))
    if images.dim() == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (job.batch,), device=device, generator=generator)
    if job.role in ("pcn", "parent_our_bn"):
        with autocast(device):
            fuse_(model, images, forms=dict(job.forms) if setting.forms == "fastest" else setting.forms)
    return model, images, labels


def set_up(setting: Setting, job: Job, *, captured: bool = True) -> Step:
    """The compiled step of a model, captured or ready to be."""
    began = time.monotonic()
    model, images, labels = prepare(setting, job)
    print(f"{job}: built and fused in {time.monotonic() - began:.1f} s", flush=True)  # what follows may take minutes
    optimizer = make_optimizer(model, SETTINGS, graphed=setting.cuda)
    graphed = captured and setting.cuda
    step = CompiledStep(job.way, model, optimizer, images, labels, compiled=job.way != "eager", graphed=graphed)
    if setting.cuda and not captured:
        start_state_(optimizer)
        step._run()
    return step


def with_forms(setting: Setting, job: Job, turn: Turn | None = None) -> Job:
    """Find the fastest form of every layer of a PCN; a first try, side by side with others, compiles what is timed."""
    if job.role != "pcn" or setting.forms != "fastest":
        return job
    model, images, _ = prepare(setting, replace(job, role="pcn_unfused"))
    with autocast(images.device):
        if turn is not None:
            choose_forms(model, images)
            release()
            turn.alone()
        return replace(job, forms=tuple(choose_forms(model, images).items()))


def release() -> None:
    """Leave memory that is not in use to the networks of other processes."""
    gc.collect()
    torch.cuda.empty_cache()


def measure_job(connection: Any, setting: Setting, job: Job, bandwidth: float) -> None:
    """Time a step; beside a PCN's stands the least that it could take."""
    start_process(setting)
    turn = Turn(connection)
    job = with_forms(setting, job, turn)
    release()
    turn.together()
    began = time.monotonic()
    # What cuDNN chooses while others run must not count: it remembers its choices apart for this setting.
    torch.backends.cudnn.deterministic = True
    step = set_up(setting, job, captured=False)
    release()
    compiled_s = time.monotonic() - began
    turn.alone()
    print(f"{job}: compiled in {compiled_s:.1f} s, is timed now", flush=True)
    torch.backends.cudnn.deterministic = False
    if setting.cuda:
        torch.backends.cudnn.benchmark = True  # as in training
        step._warm_up()
        torch.cuda.reset_peak_memory_stats()  # what cuDNN tried while it chose is no part of a step
        step.graph = step._record()
    found = {"way": job.way, "forms": dict(job.forms), "compiled_s": compiled_s} | timed(setting, step)
    if job.role == "pcn":
        with autocast(step.inputs.device):
            moved = step_bytes(step.model, step.inputs, step.inputs.itemsize)
        found["floor_ms"] = 1000 * moved / bandwidth
    connection.send(found)


def _laps(watch: Stopwatch, run: Callable[[], None], count: int) -> list[float]:
    taken = []
    for _ in range(count):
        run()
        taken.append(watch.lap()[0])
    return taken


def timed(setting: Setting, step: Step) -> Result:
    """Milliseconds and joules of a step, and the peak of memory while it was recorded and run."""
    run = step.graph.replay if step.graph is not None else lambda: step(step.inputs, step.labels)
    for _ in range(3 if setting.cuda else 1):
        run()
    watch = Stopwatch(step.inputs.device)
    run()
    once_s, _ = watch.lap()
    if setting.cuda:
        count = max(5, int(1.5 / once_s))
        for _ in range(count):
            run()
        step_s = watch.lap()[0] / count
    else:  # where others are at work too, one step may take twice as long as the next
        step_s = median(_laps(watch, run, STEPS))
    peak = torch.cuda.max_memory_allocated() / 2**20 if setting.cuda else None
    power = power_w(run, step_s, step.inputs.device)
    return {
        "ms": 1000 * step_s,
        "energy_j": None if power is None else power * step_s,
        "peak_mib": peak,
        "loss": float(step.loss_sum.detach()),
    }
