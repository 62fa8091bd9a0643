"""How long a training step takes: of a PCN, of its compiled parent, of that with our batch norm, of a narrower network.

    python benchmarks/step_time.py                                  all, the most important first, within --seconds
    python benchmarks/step_time.py --only wide_resnet20-pcn1        some networks; records of the others stay
    python benchmarks/step_time.py --tune                           launches of all kernels are timed first
    python benchmarks/step_time.py --tune only --cache DIR          those alone, in DIR/launches.json
    python benchmarks/step_time.py --tune --tuned sums gradients    of these kernels only; the others stay as they are
    python benchmarks/step_time.py --only kernels                   the table of kernels
    python benchmarks/step_time.py --device cpu --only wide_resnet20-pcn1 --batches 32 --seconds 900
    python benchmarks/step_time.py --tiny --device cpu --out FILE   a minute, to see that it runs

Records that are there already are skipped unless --again is given, so that a run that was stopped goes on. All networks
of one record are timed in the same run. Each has a process of its own; side by side they compile, and in turn, while
all others wait, they find the fastest form of every layer and are timed: forward, backward and optimizer in bf16 as one
CUDA graph, in the fastest of two or three ways to compile; on a CPU in fp32, channels last, compiled or not. A
process that takes too long is stopped and costs no other. Results are saved as they come, those of a CPU in
step_time_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from pcn.fusion import FORMS
from pcn.training.step import training_dtype
from pcn.whole_files import write_whole
from step_time_jobs import (
    CPU_WAYS,
    WAYS,
    Job,
    Result,
    Setting,
    kernel_rows,
    machine,
    measure_job,
    work,
)
from step_time_kernels import STAGES, WIDE, Stage
from step_time_launches import PROCESSES, Call, compile_launches, note_calls, note_cases, time_launches
from step_time_networks import NETWORKS, TINY, Network
from turns import in_turns
from watched import watched

DEVICES = {"cuda": "", "cpu": "_cpu"}
RESULTS = {name: Path(__file__).parent / "results" / f"step_time{end}.json" for name, end in DEVICES.items()}
BESIDE = ("narrow", "parent_our_bn", "pcn_unfused")
LIMITS_S = {"machine": 45.0, "turn": 180.0, "kernels": 90.0, "launches": 150.0}
KEPT_S = 8.0  # for each network that waits to be timed
COMPILING = 0.6  # of the time that is left when launches are compiled
SIDE_BY_SIDE = 16
TIMING = 0.4  # of the time that is left may go to those who wait: the rest is for getting ready


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cache = given.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        roles = ("parent", "pcn", *given.beside)
        how = given.forms, roles, given.stages, tuple(given.ways), tuple(given.tuned)
        setting = Setting(given.device, given.tiny, cache, *how)
        run = Run(setting, given.out or RESULTS[given.device], given.seconds, given.turn, given.together)
        run.machine()
        networks = [TINY] if given.tiny else [NETWORKS[name] for name in given.only if name in NETWORKS]
        asked = [(network, batch) for network in networks for batch in given.batches or network.batches]
        wanted = [each for each in asked if given.again or not run.results.has(each[0].name, each[1])]
        if given.tune:
            run.tune(wanted, run.stages if "kernels" in given.only else [])
        if given.tune == "only":
            return
        if "kernels" in given.only:
            run.kernels()
        run.time(sorted(wanted, key=lambda each: -each[1]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["kernels", *NETWORKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--device", choices=list(DEVICES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=230.0, help="nothing starts or goes on after these")
    tune = {"nargs": "?", "choices": ("first", "only"), "const": "first", "metavar": "only"}
    parser.add_argument("--tune", **tune, help="time several launches of every kernel first, or only those")
    parser.add_argument(
        "--tuned", nargs="+", default=(), metavar="KERNEL", help="time launches of these only, as in launches.json"
    )
    parser.add_argument("--forms", choices=("fastest", *FORMS), default="fastest", help="of the PCN's layers")
    parser.add_argument("--beside", nargs="*", choices=BESIDE, default=BESIDE, help="what is timed with parent and PCN")
    ways = *CPU_WAYS[:1], *WAYS["parent"]
    parser.add_argument("--ways", nargs="+", choices=ways, default=("eager", "whole", "blocks"), help="of compiling")
    parser.add_argument("--batches", nargs="+", type=int, metavar="N", help="samples, in place of the usual numbers")
    parser.add_argument("--turn", type=float, default=LIMITS_S["turn"], help="seconds of a process for one turn")
    parser.add_argument("--together", type=int, metavar="N", help="networks got ready side by side; by time otherwise")
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
        empty: Result = {"machine": {}, "records": [], "kernels": [], "forms": {}, "unfused": [], "ways": []}
        self.held: Result = empty | (json.loads(path.read_text()) if path.exists() else {})

    def has(self, network: str, batch: int) -> bool:
        return any((record["network"], record["batch"]) == (network, batch) for record in self.held["records"])

    def put(self, kind: str, keys: tuple[str, ...], entry: Result) -> None:
        """Put an entry in the place of one that is the same by these keys, or at the end."""
        entries = self.held[kind]
        same = (at for at, each in enumerate(entries) if all(each[key] == entry[key] for key in keys))
        at = next(same, len(entries))
        entries[at : at + 1] = [entry]
        self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, (json.dumps(self.held, indent=1) + "\n").encode())


class Run:
    """The processes one after another, until the time is up."""

    def __init__(
        self, setting: Setting, out: Path, seconds: float, turn_s: float = LIMITS_S["turn"], together: int | None = None
    ) -> None:
        self.setting, self.results, self.turn_s, self.together = setting, Results(out), turn_s, together
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.found: dict[tuple[str, str, int], Result] = {}

    def machine(self) -> None:
        for report in self._reports("machine", LIMITS_S["machine"], machine, self.setting):
            self.results.held["machine"] |= report
        if "copy_bytes_per_s" not in self.results.held["machine"]:
            raise SystemExit("the device's bandwidth could not be measured: is it free, and does PyTorch see it?")
        self.results.save()

    def tune(self, wanted: list[tuple[Network, int]], stages: list[Stage]) -> None:
        """Time launches of what networks, their parents with our batch norm and the table of kernels use.

        What a network calls, and what is compiled for it, is the same for any batch; what is timed is not.
        """
        roles = [role for role in ("pcn", "parent_our_bn") if role in self.setting.roles]
        jobs = [Job(network, role, batch, "whole") for network, batch in wanted for role in roles]
        asked: list[tuple[Any, Job | Stage, list[int]]] = [
            (note_calls, job, [each.batch for each in jobs if each.model == model])
            for model, job in {job.model: job for job in jobs}.items()
        ]
        asked += [(note_cases, stage, [self.table_batch]) for stage in stages]
        with ThreadPoolExecutor(PROCESSES) as threads:
            noted = list(threads.map(lambda each: self._calls(*each[:2]), asked))
            timed = [
                (call, batch)
                for (_, _, batches), calls in zip(asked, noted, strict=True)
                for call in calls
                for batch in batches
            ]
            if not timed:
                return
            # What is not compiled by then, the timing compiles itself.
            limit_s = COMPILING * (self.deadline - time.monotonic())
            calls = list(dict.fromkeys(call for call, _ in timed))
            list(threads.map(lambda part: self._launches(limit_s, compile_launches, calls, part), range(PROCESSES)))
        limit_s = LIMITS_S["launches"] * len({batch for _, batch in timed})
        self._launches(limit_s, time_launches, list(dict.fromkeys(timed)))

    def _calls(self, task: Any, of: Job | Stage) -> list[Call]:
        reports = self._reports(f"calls of {of}", LIMITS_S["launches"], task, self.setting, of)
        return [call for report in reports for call in report["calls"]]

    def _launches(self, limit_s: float, task: Any, *arguments: Any) -> None:
        list(self._reports(task.__name__.replace("_", " "), limit_s, task, self.setting, *arguments))

    @property
    def stages(self) -> list[Stage]:
        """Those of the table of kernels."""
        return STAGES[:1] if self.setting.tiny else (STAGES + WIDE[:2])[: self.setting.stages]

    @property
    def table_batch(self) -> int:
        return 2 if self.setting.tiny else 1024

    def kernels(self) -> None:
        bandwidth = self.results.held["machine"]["copy_bytes_per_s"]
        for stage in self.stages:
            arguments = kernel_rows, self.setting, self.table_batch, stage, bandwidth
            for report in self._reports(f"kernels {stage}", LIMITS_S["kernels"], *arguments):
                self.results.put("kernels", ("kernel", "width", "rank", "rows", "dtype"), report)

    def time(self, wanted: list[tuple[Network, int]]) -> None:
        """Measure some records at once; with little time left few, so that the most important are there in the end.

        Parts that an earlier round has measured are not measured again.
        """
        left = list(wanted)
        while left:
            jobs: dict[str, Job] = {}
            begun: list[tuple[Network, int]] = []
            most = self._together()
            while left and (not begun or len(jobs | self._jobs(*left[0])) <= most):
                begun.append(left.pop(0))
                jobs |= self._jobs(*begun[-1])
            waiting = [(each, set(self._jobs(*each))) for each in begun]
            for label in self._round(jobs):
                for _, labels in waiting:
                    labels.discard(label)
                for each in [each for each, labels in waiting if not labels]:
                    self._record(*each)
                waiting = [(each, labels) for each, labels in waiting if labels]
            for each, _ in waiting:
                self._record(*each)

    def _together(self) -> int:
        """How many networks are got ready side by side; a CPU has few cores for that."""
        return (self.together or fit(self.deadline - time.monotonic())) if self.setting.cuda else 1

    def _jobs(self, network: Network, batch: int) -> dict[str, Job]:
        """What is still to be timed for a record, by label."""
        roles = [role for role in self.setting.roles if role != "narrow" or network.narrow is not None]
        jobs = [Job(network, role, batch, way) for role in roles for way in self._ways(network, role)]
        return {str(job): job for job in jobs if job.part not in self.found}

    def _ways(self, network: Network, role: str) -> list[str]:
        """How a network is compiled: block by block where it has blocks that are alike."""
        if not self.setting.cuda:
            return [way for way in CPU_WAYS if way in self.setting.ways] or [CPU_WAYS[0]]
        ways = [way for way in WAYS[role] if way in self.setting.ways] or list(WAYS[role][:1])
        return ways if network.has_blocks else ["whole" if way == "blocks" else way for way in ways]

    def _round(self, jobs: dict[str, Job]) -> Iterator[str]:
        """Yield each job's label when it has ended, well or not."""
        if self.deadline - time.monotonic() < 5.0:
            self._say(f"left out, the time is up: {'; '.join(jobs)}")
            return
        bandwidth = self.results.held["machine"]["copy_bytes_per_s"]
        given = [(label, (self.setting, job, bandwidth)) for label, job in jobs.items()]
        for label, report in in_turns(measure_job, given, self.turn_s, self.deadline, KEPT_S):
            if "failed" in report:
                self._say(report["failed"])
            else:
                self._say(f"{label}: {json.dumps(report)}")
                self._keep(jobs[label], report)
            yield label

    def _keep(self, job: Job, report: Result) -> None:
        forms = report.pop("forms")
        if forms:
            self.results.held["forms"][f"{job.model} {job.batch}"] = forms
        way = {"network": job.model, "role": job.role, "batch": job.batch, "way": job.way}
        self.results.put("ways", tuple(way), way | {key: report[key] for key in ("ms", "energy_j", "compiled_s")})
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
            "dtype": str(training_dtype(device)).removeprefix("torch."),
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
                self._say(f"{label}: {json.dumps(report, default=lambda each: '...')[:500]}")
                yield report
        self._say(f"{label}: took {time.monotonic() - began:.1f} s")

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)


def fit(left_s: float) -> int:
    """How many networks can be got ready and timed side by side in the time that is left.

    >>> [fit(seconds) for seconds in (600.0, 200.0, 66.0, 5.0)]
    [16, 10, 3, 0]
    """
    return min(SIDE_BY_SIDE, int(TIMING * left_s / KEPT_S))


if __name__ == "__main__":
    main()
