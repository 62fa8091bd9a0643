"""What a training step holds when it holds most: blocks of memory by their size and by who asked for them.

    python benchmarks/step_memory.py --network wide_resnet20-patterns --roles parent parent_our_bn pcn --out FILE

Each network is compiled and fused as in step_time.py; PyTorch's allocator keeps its history while the step is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from step_roles import look_at_roles
from step_time_jobs import Job, Result, Setting, release, set_up, with_forms

MIB = 2**20
SHOWN = 30
EVENTS = 200_000  # of the allocator, that are kept


def main() -> None:
    look_at_roles(__doc__, memory_job, show, roles=("parent", "parent_our_bn", "pcn"), limit_s=180.0)


def memory_job(setting: Setting, job: Job) -> Iterator[Result]:
    """What is held at the peak of one step, and what was there before it began."""
    step = set_up(setting, with_forms(setting, job), captured=False)
    step._warm_up()
    release()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=EVENTS, stacks="python")
    step.graph = step._record()
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    held = Counter((event["size"], asked_by(event)) for event in alive_at_peak(events))
    blocks = [
        {"mib": size * count / MIB, "each_mib": size / MIB, "count": count, "asked_by": by}
        for (size, by), count in sorted(held.items(), key=lambda item: -item[0][0] * item[1])
    ]
    peak = torch.cuda.max_memory_allocated()
    yield {"found": {"peak_mib": peak / MIB, "before_mib": before / MIB, "blocks": blocks}}


def alive_at_peak(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the allocations that live when most is held, of the allocator's events in their order.

    >>> kinds = [("alloc", 1, 5), ("alloc", 2, 3), ("free_requested", 1, 5), ("alloc", 3, 4), ("free_completed", 1, 5)]
    >>> events = [{"action": action, "addr": place, "size": size} for action, place, size in kinds]
    >>> [event["size"] for event in alive_at_peak(events)]
    [5, 3]
    """
    alive: dict[int, Mapping[str, Any]] = {}
    held, most, at_peak = 0, 0, []
    for event in events:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
            held += event["size"]
            if held > most:
                most, at_peak = held, list(alive.values())
        elif event["action"] == "free_requested" and event["addr"] in alive:  # what was there before is not known
            held -= alive.pop(event["addr"])["size"]
    return at_peak


def asked_by(event: Mapping[str, Any]) -> str:
    """The innermost line of Python that is not the allocator's own."""
    frames = event.get("frames") or [{"filename": "unknown", "line": 0, "name": ""}]
    return f"{Path(frames[0]['filename']).name}:{frames[0]['line']} {frames[0]['name']}"


def show(role: str, report: Result) -> None:
    print(f"{role}: {report['peak_mib']:.1f} MiB at the peak, {report['before_mib']:.1f} before the step")
    for block in report["blocks"][:SHOWN]:
        print(f"  {block['mib']:8.1f} MiB  {block['count']:4d} x {block['each_mib']:8.2f}  {block['asked_by'][:100]}")


if __name__ == "__main__":
    main()
