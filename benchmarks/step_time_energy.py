"""What a GPU draws while it repeats a step: between two ticks of its counter of energy, which come every few steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from pcn.training.meter import read_energy_j

WATCHED_S = 1.5
STEPS = 60  # at least: a tick is seen up to a step late
CHUNK_S = 0.01  # of work that is launched at once; the next chunk is there before the first has ended


def power_w(
    run: Callable[[], Any],
    step_s: float,
    device: torch.device,
    *,
    read_j: Callable[[torch.device], float | None] = read_energy_j,
    watched_s: float = WATCHED_S,
) -> float | None:
    """Return watts, or None where there is no counter, or none that moves.

    The counter stands still for a tenth of a second or so: a number of steps would have too many joules, or too few.
    """
    last_j = read_j(device)
    if last_j is None:
        return None
    each = max(1, round(CHUNK_S / step_s))
    watched_s = max(watched_s, STEPS * step_s)
    ticks: list[tuple[float, float]] = []
    began = now = time.perf_counter()
    wait = _mark(device)
    while now - began < watched_s:
        for _ in range(each):
            run()
        wait, done = _mark(device), wait
        done()
        now, seen_j = time.perf_counter(), read_j(device)
        if seen_j is not None and seen_j != last_j:
            ticks.append((now, seen_j))
            last_j = seen_j
    wait()
    if len(ticks) < 2:
        return None
    (first_s, first_j), (end_s, end_j) = ticks[0], ticks[-1]
    return (end_j - first_j) / (end_s - first_s)


def _mark(device: torch.device) -> Callable[[], None]:
    """A way to wait until the device has done what it was given so far."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
