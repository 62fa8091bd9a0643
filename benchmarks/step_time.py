"""How long a training step takes: of a PCN, of its compiled parent, of that with our batch norm, of a narrower network.

    python benchmarks/step_time.py                                  all, the most important first, within --seconds
    python benchmarks/step_time.py --only wide_resnet20-pcn1        some networks; records of the others stay
    python benchmarks/step_time.py --only kernels --tune            the table of kernels, launches timed first
    python benchmarks/step_time.py --device cpu --only wide_resnet20-pcn1 --batches 32 --seconds 900
    python benchmarks/step_time.py --tiny --device cpu --out FILE   a minute, to see that it runs

Records that are there already are skipped unless --again is given, so that a run that was stopped goes on. All networks
of one record are timed in the same run. For each record the fastest form of every layer is found first; then the steps
are compiled, side by side, into a cache on disk; then each is timed alone: forward, backward and optimizer in bf16 as
one CUDA graph, parent and PCN in the faster of two ways to compile; on a CPU in fp32 as PyTorch runs it, channels last.
A process that takes too long is stopped and costs no other. Results are saved as they come, those of a CPU in
step_time_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pcn
from pcn.folders import write_whole
from pcn.fusion import FORMS, Form, choose_forms, fuse_
from pcn.kernels import tuning
from pcn.kernels.launch import CHOICES
from pcn.training.compiling import Forwards, compile_parts
from pcn.training.meter import Stopwatch
from pcn.training.optimizers import make_optimizer
from pcn.training.settings import Settings
from pcn.training.step import Step, autocast, compute_dtype
from step_time_floor import step_bytes
from step_time_kernels import STAGES, WIDE, cases, copy_bandwidth, rows_of
from step_time_networks import NETWORKS, PLANNED, TINY, Network, build
from watched import watched

DEVICES = {"cuda": "", "cpu": "_cpu"}
RESULTS = {name: Path(__file__).parent / "results" / f"step_time{end}.json" for name, end in DEVICES.items()}
WAYS: dict[str, tuple[str, ...]] = {  # of compiling, for each part of a record; the fastest counts
    "parent": ("whole", "blocks"),
    "pcn": ("whole",),
    "narrow": ("blocks",),
    "parent_our_bn": ("whole",),
    "pcn_unfused": ("blocks",),
}
BESIDE = ("narrow", "parent_our_bn", "pcn_unfused")
LIMITS_S = {"forms": 60.0, "compile": 90.0, "time": 45.0, "kernels": 90.0}
SIDE_BY_SIDE = 7
SETTINGS = Settings(learning_rate=0.01, momentum=0.9, weight_decay=1e-4)
Result = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    device: str
    tiny: bool
    folder: Path  # for compiled code
    plan: Path | None = None
    tune: bool = False
    forms: str = "fastest"
    roles: tuple[str, ...] = tuple(WAYS)
    stages: int | None = None

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


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cache = given.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        roles = ("parent", "pcn", *given.beside)
        setting = Setting(given.device, given.tiny, cache, given.plan, given.tune, given.forms, roles, given.stages)
        run = Run(setting, given.out or RESULTS[given.device], given.seconds)
        run.machine()
        if "kernels" in given.only:
            run.kernels()
        networks = [TINY] if given.tiny else [NETWORKS[name] for name in given.only if name in NETWORKS]
        if given.plan is None:
            networks = [network for network in networks if network.name != PLANNED]
        asked = [(network, batch) for network in networks for batch in given.batches or network.batches]
        wanted = [each for each in asked if given.again or not run.results.has(each[0].name, each[1])]
        run.time(sorted(wanted, key=lambda each: -each[1]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["kernels", *NETWORKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--device", choices=list(DEVICES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=230.0, help="nothing starts or goes on after these")
    parser.add_argument("--plan", type=Path, help=f"plan.json of {PLANNED}, as pcn.save writes it")
    parser.add_argument("--tune", action="store_true", help="time several launches of every kernel first")
    parser.add_argument("--forms", choices=("fastest", *FORMS), default="fastest", help="of the PCN's layers")
    parser.add_argument("--beside", nargs="*", choices=BESIDE, default=BESIDE, help="what is timed with parent and PCN")
    parser.add_argument("--batches", nargs="+", type=int, metavar="N", help="samples, in place of the usual numbers")
    parser.add_argument("--stages", type=int, metavar="N", help="of the table of kernels, only the first")
    parser.add_argument("--cache", type=Path, help="folder that keeps compiled code and launches for the next run")
    parser.add_argument("--again", action="store_true", help="also what is in the results already")
    parser.add_argument("--out", type=Path, help="file of the results")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


class Results:
    """The results file: records of networks, rows of kernels, the machine that they come from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        empty: Result = {"machine": {}, "records": [], "kernels": [], "forms": {}, "unfused": []}
        self.held: Result = empty | (json.loads(path.read_text()) if path.exists() else {})

    def has(self, network: str, batch: int) -> bool:
        return any((record["network"], record["batch"]) == (network, batch) for record in self.held["records"])

    def put(self, kind: str, keys: tuple[str, ...], entry: Result) -> None:
        """Add an entry in place of one that is the same by these keys."""
        others = [each for each in self.held[kind] if any(each[key] != entry[key] for key in keys)]
        self.held[kind] = [*others, entry]
        self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, (json.dumps(self.held, indent=1) + "\n").encode())


class Run:
    """The processes one after another, until the time is up."""

    def __init__(self, setting: Setting, out: Path, seconds: float) -> None:
        self.setting, self.results = setting, Results(out)
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.found: dict[tuple[str, str, int], Result] = {}

    def machine(self) -> None:
        for report in self._reports("machine", LIMITS_S["time"], machine, self.setting):
            self.results.held["machine"] |= report
        self.results.save()

    def kernels(self) -> None:
        batch = 2 if self.setting.tiny else 1024
        stages = STAGES[:1] if self.setting.tiny else (STAGES + WIDE[:2])[: self.setting.stages]
        bandwidth = self.results.held["machine"]["copy_bytes_per_s"]
        if self.setting.tune:
            with ThreadPoolExecutor(len(stages)) as threads:
                list(threads.map(lambda stage: self._warm(batch, stage), stages))
        for stage in stages:
            arguments = kernel_rows, self.setting, batch, stage, bandwidth
            for report in self._reports(f"kernels {stage}", LIMITS_S["kernels"], *arguments):
                self.results.put("kernels", ("kernel", "width", "rank", "rows", "dtype"), report)

    def _warm(self, batch: int, stage: tuple[int, int, int]) -> None:
        list(self._reports(f"compiling kernels {stage}", LIMITS_S["kernels"], warm_kernels, self.setting, batch, stage))

    def time(self, wanted: list[tuple[Network, int]]) -> None:
        """Measure record by record; parts that an earlier record of this run has measured are not measured again."""
        for network, batch in wanted:
            jobs = [job for job in self._jobs(network, batch) if job.part not in self.found]
            if self.setting.cuda:
                with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
                    list(threads.map(self._compile, jobs))
            for job in jobs:
                self._time(job)
            self._record(network, batch)

    def _jobs(self, network: Network, batch: int) -> list[Job]:
        roles = [role for role in self.setting.roles if role != "narrow" or network.narrow is not None]
        jobs = [Job(network, role, batch, way) for role in roles for way in self._ways(role)]
        forms = self._forms(next(job for job in jobs if job.role == "pcn"))
        return [replace(job, forms=forms) if job.role == "pcn" else job for job in jobs]

    def _ways(self, role: str) -> tuple[str, ...]:
        return WAYS[role] if self.setting.cuda else WAYS[role][:1]

    def _forms(self, job: Job) -> tuple[tuple[str, Form], ...]:
        """Find the forms of a PCN's layers, while nothing else runs."""
        forms: Result = {}
        if self.setting.forms != "fastest":
            return ()
        for report in self._reports(f"forms of {job}", LIMITS_S["forms"], choose_job, self.setting, job):
            forms = self.results.held["forms"][f"{job.model} {job.batch}"] = report
        return tuple(forms.items())

    def _compile(self, job: Job) -> None:
        list(self._reports(f"compiling {job}", LIMITS_S["compile"], compile_job, self.setting, job))

    def _time(self, job: Job) -> None:
        bandwidth = self.results.held["machine"]["copy_bytes_per_s"]
        for report in self._reports(f"timing {job}", LIMITS_S["time"], time_job, self.setting, job, bandwidth):
            best = self.found.get(job.part)
            if best is None or report["ms"] < best["ms"]:
                self.found[job.part] = report

    def _record(self, network: Network, batch: int) -> None:
        parts = {role: self.found.get(Job(network, role, batch, "").part, {}) for role in WAYS}
        parent, fused = parts["parent"], parts["pcn"]
        if not parent or not fused:
            self._say(f"{network.name} at {batch}: no record, a part is missing")
            return
        device = torch.device(self.setting.device)
        record = {
            "network": network.name,
            "parent": network.parent,
            "batch": batch,
            "dtype": str(compute_dtype(device)).removeprefix("torch."),
            "device": self.results.held["machine"]["device"],
            "parent_ms": parent["ms"],
            "parent_our_bn_ms": parts["parent_our_bn"].get("ms"),
            "narrow_ms": parts["narrow"].get("ms"),
            "pcn_ms": fused["ms"],
            "ratio": fused["ms"] / parent["ms"],
            "parent_peak_mib": parent["peak_mib"],
            "pcn_peak_mib": fused["peak_mib"],
            "parent_energy_j": parent["energy_j"],
            "pcn_energy_j": fused["energy_j"],
            "floor_ms": fused.get("floor_ms"),
        }
        self._say(json.dumps(record))
        if parts["pcn_unfused"]:
            kept = {key: record[key] for key in ("network", "batch", "dtype", "device", "parent_ms")}
            unfused_ms = parts["pcn_unfused"]["ms"]
            unfused = {**kept, "unfused_ms": unfused_ms, "ratio": unfused_ms / parent["ms"]}
            self.results.put("unfused", ("network", "batch", "dtype", "device"), unfused)
        self.results.put("records", ("network", "batch", "dtype", "device"), record)

    def _reports(self, label: str, limit_s: float, task: Any, *arguments: Any) -> Iterator[Result]:
        left_s = self.deadline - time.monotonic()
        if left_s < 5.0:
            self._say(f"{label}: left out, the time is up")
            return
        began = time.monotonic()
        for report in watched(label, min(limit_s, left_s), work, task, *arguments):
            if "failed" in report:
                self._say(report["failed"])
            else:
                self._say(f"{label}: {json.dumps(report)}")
                yield report
        self._say(f"{label}: took {time.monotonic() - began:.1f} s")

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)


def work(sender: Any, task: Any, setting: Setting, *arguments: Any) -> None:
    os.setsid()  # so that compiling processes end with this one
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(setting.folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(setting.folder / "triton")
    import torch._inductor.config

    torch._inductor.config.compile_threads = 2
    if setting.cuda:
        torch.backends.cudnn.benchmark = True  # as in training
    if setting.launches.exists() and not setting.tune:
        CHOICES.load(setting.launches)
    for report in task(setting, *arguments):
        sender.send(report)


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
    if setting.tune:
        with tuning(setting.launches):
            list(rows_of(device, batch, stage, bandwidth))
    yield from rows_of(device, batch, stage, bandwidth)


def warm_kernels(setting: Setting, batch: int, stage: tuple[int, int, int]) -> Iterator[Result]:
    """Compile every launch of a stage's kernels; how long they take while others do the same says nothing."""
    width, rank, positions = stage
    device = torch.device(setting.device)
    dtype = torch.bfloat16 if setting.cuda else torch.float32
    with tuning():
        for case in cases(width, rank, batch * positions // 16, device, dtype, positions):
            case.run()
    yield {}


class CompiledStep(Step):
    """A step compiled as a whole or block by block."""

    def __init__(self, way: str, *arguments: Any, **keywords: Any) -> None:
        self.way = way
        super().__init__(*arguments, **keywords)

    def _compile(self) -> Forwards:
        return compile_parts(self.model, whole=self.way == "whole")


def prepare(setting: Setting, job: Job) -> tuple[nn.Module, Tensor, Tensor]:
    """Build a model and a batch, and fuse what is to be fused."""
    device = torch.device(setting.device)
    model = build(job.network, job.role, device, setting.plan)
    generator = torch.Generator(device).manual_seed(0)
    images = torch.randn(job.batch, *job.network.shape, device=device, generator=generator).to(compute_dtype(device))
    if images.dim() == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (job.batch,), device=device, generator=generator)
    if job.role in ("pcn", "parent_our_bn"):
        with autocast(device):
            fuse_(model, images, forms=dict(job.forms) if setting.forms == "fastest" else setting.forms)
    return model, images, labels


def set_up(setting: Setting, job: Job) -> Step:
    """The compiled step of a model, ready to be replayed."""
    model, images, labels = prepare(setting, job)
    if setting.cuda:
        torch.cuda.reset_peak_memory_stats()
    optimizer = make_optimizer(model, SETTINGS, graphed=setting.cuda)
    return CompiledStep(job.way, model, optimizer, images, labels, compiled=setting.cuda, graphed=setting.cuda)


def choose_job(setting: Setting, job: Job) -> Iterator[Result]:
    """Find the fastest form of every layer."""
    model, images, _ = prepare(setting, replace(job, role="pcn_unfused"))
    with autocast(images.device):
        yield choose_forms(model, images)


def compile_job(setting: Setting, job: Job) -> Iterator[Result]:
    """Compile a step; what comes of it is on disk."""
    set_up(setting, job)
    yield {}


def time_job(setting: Setting, job: Job, bandwidth: float) -> Iterator[Result]:
    """Time a step; beside a PCN's stands the least that it could take."""
    step = set_up(setting, job)
    found = {"way": job.way} | timed(setting, step)
    if job.role == "pcn":
        with autocast(step.inputs.device):
            moved = step_bytes(step.model, step.inputs, step.inputs.itemsize)
        found["floor_ms"] = 1000 * moved / bandwidth
    yield found


def timed(setting: Setting, step: Step) -> Result:
    """Milliseconds and joules of a step, and the peak of memory while it was set up and run."""
    for _ in range(3 if setting.cuda else 1):
        step(step.inputs, step.labels)
    watch = Stopwatch(step.inputs.device)
    run = step.graph.replay if step.graph is not None else lambda: step(step.inputs, step.labels)
    run()
    once_s, _ = watch.lap()
    count = max(5, int(1.5 / once_s)) if setting.cuda else 2
    watch.lap()
    for _ in range(count):
        run()
    taken_s, energy_j = watch.lap()
    peak = torch.cuda.max_memory_allocated() / 2**20 if setting.cuda else None
    return {
        "ms": 1000 * taken_s / count,
        "energy_j": None if energy_j is None else energy_j / count,
        "peak_mib": peak,
        "loss": float(step.loss_sum.detach()),
    }


if __name__ == "__main__":
    main()
