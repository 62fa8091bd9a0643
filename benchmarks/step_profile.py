"""Where the time of a training step goes: its GPU kernels by name, the slowest first.

    python benchmarks/step_profile.py --network wide_resnet20-pcn1 --batch 1024 --roles parent pcn narrow --out FILE

Each network is compiled and fused as in step_time.py, and its CUDA graph is replayed under PyTorch's profiler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch

from step_roles import look_at_roles
from step_time_jobs import Job, Result, Setting, set_up, with_forms

REPLAYS = 5
SHOWN = 25


def main() -> None:
    look_at_roles(__doc__, profile_job, show, roles=("parent", "pcn", "narrow"), limit_s=120.0)


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
    yield {"found": sorted(rows, key=lambda row: -row["ms"])}


def show(role: str, rows: list[Result]) -> None:
    print(f"{role}: {sum(row['ms'] for row in rows):.3f} ms in {sum(row['calls'] for row in rows)} kernels")
    for row in rows[:SHOWN]:
        print(f"  {row['ms']:8.3f} ms  {row['calls']:4d}x  {row['kernel'][:110]}", flush=True)


if __name__ == "__main__":
    main()
