"""What a GPU draws while it repeats a step: between two ticks of its counter of energy, ten of which come in a second.

Reading the counter takes milliseconds. A thread of its own does so, and the device always has work before it: one that
waits for the reader draws less, the more the shorter its steps are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import torch

from pcn.training.meter import read_energy_j

WATCHED_S = 1.5
CHUNK_S = 0.05  # of work that is launched at once; the next chunk is there before the first has ended
PAUSE_S = 0.002  # between two readings
Read = Callable[[torch.device], float | None]
Tick = tuple[float, float]  # seconds, joules


def power_w(
    run: Callable[[], Any],
    step_s: float,
    device: torch.device,
    *,
    read_j: Read = read_energy_j,
    watched_s: float = WATCHED_S,
) -> float | None:
    """Return watts, or None where there is no counter, or none that moves."""
    if read_j(device) is None:
        return None
    with _ticks(device, read_j) as ticks:
        _repeat(run, step_s, device, watched_s)
    if len(ticks) < 2:
        return None
    (first_s, first_j), (end_s, end_j) = ticks[0], ticks[-1]
    return (end_j - first_j) / (end_s - first_s)


@contextmanager
def _ticks(device: torch.device, read_j: Read) -> Iterator[list[Tick]]:
    """When the counter moved, and where to."""
    ticks: list[Tick] = []
    ended = Event()

    def watch() -> None:
        last_j = read_j(device)
        while not ended.wait(PAUSE_S):
            seen_j = read_j(device)
            if seen_j is not None and seen_j != last_j:
                ticks.append((time.perf_counter(), seen_j))
                last_j = seen_j

    reader = Thread(target=watch)
    reader.start()
    try:
        yield ticks
    finally:
        ended.set()
        reader.join()


def _repeat(run: Callable[[], Any], step_s: float, device: torch.device, watched_s: float) -> None:
    """Keep the device busy for so long."""
    each = max(1, round(CHUNK_S / step_s))
    until = time.perf_counter() + watched_s
    wait = _mark(device)
    while time.perf_counter() < until:
        for _ in range(each):
            run()
        wait, done = _mark(device), wait
        done()
    wait()


def _mark(device: torch.device) -> Callable[[], None]:
    """A way to wait until the device has done what it was given so far."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
