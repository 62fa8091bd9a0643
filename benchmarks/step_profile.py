"""Where the time of a training step goes: its GPU kernels by name, the slowest first.

    python benchmarks/step_profile.py --network wide_resnet20-pcn1 --batch 1024 --roles parent pcn narrow --out FILE

Each network is compiled and fused as in step_time.py, and its CUDA graph is replayed under PyTorch's profiler.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

from pcn.whole_files import write_whole
from step_time_jobs import Job, Result, Setting, set_up, with_forms, work
from step_time_networks import NETWORKS
from watched import watched

REPLAYS = 5
SHOWN = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(NETWORKS), default="wide_resnet20-pcn1")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--roles", nargs="+", default=["parent", "pcn", "narrow"])
    parser.add_argument("--way", choices=("whole", "blocks"), default="whole", help="of compiling")
    parser.add_argument("--cache", type=Path, help="folder that keeps compiled code, as step_time.py's")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        setting = Setting("cuda", False, given.cache or Path(folder))
        for role in given.roles:
            job = Job(NETWORKS[given.network], role, given.batch, given.way)
            for report in watched(str(job), 120.0, work, profile_job, setting, job):
                print(report.get("failed", ""), flush=True)
                found[role] = report.get("kernels", [])
                show(role, found[role])
    if given.out:
        write_whole(given.out, (json.dumps(found, indent=1) + "\n").encode())


def profile_job(setting: Setting, job: Job) -> Iterator[Result]:
    """Milliseconds of each kernel in one step."""
    step = set_up(setting, with_forms(setting, job))
    run = step.graph.replay if step.graph is not None else lambda: step(step.inputs, step.labels)
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            run()
        torch.cuda.synchronize()
    taken: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            taken[event.name].append(event.time_range.elapsed_us() / 1000)
    rows = [{"kernel": name, "calls": len(ms) // REPLAYS, "ms": sum(ms) / REPLAYS} for name, ms in taken.items()]
    yield {"kernels": sorted(rows, key=lambda row: -row["ms"])}


def show(role: str, rows: list[Result]) -> None:
    print(f"{role}: {sum(row['ms'] for row in rows):.3f} ms in {sum(row['calls'] for row in rows)} kernels")
    for row in rows[:SHOWN]:
        print(f"  {row['ms']:8.3f} ms  {row['calls']:4d}x  {row['kernel'][:110]}", flush=True)


if __name__ == "__main__":
    main()
