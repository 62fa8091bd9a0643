"""A GPU's power is read between ticks of its counter, not between whatever moments a measurement begins and ends."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch

TICK_S, WATTS = 0.05, 400.0


def test_a_counter_that_ticks_says_what_is_drawn() -> None:
    from step_time_energy import power_w

    def read(device: torch.device) -> float:
        return WATTS * TICK_S * int(time.perf_counter() / TICK_S)

    found = power_w(lambda: time.sleep(0.001), 0.001, torch.device("cpu"), read_j=read, watched_s=0.4)
    assert found == pytest.approx(WATTS, rel=0.15)  # a tick is seen a few milliseconds late


def test_without_a_counter_nothing_is_said() -> None:
    from step_time_energy import power_w

    assert power_w(list, 1.0, torch.device("cpu")) is None
    assert power_w(list, 1.0, torch.device("cpu"), read_j=lambda device: 7.0, watched_s=0.01) is None  # it stands still


def test_the_device_has_work_while_the_counter_is_read() -> None:
    from step_time_energy import power_w

    began: list[float] = []

    def slow(device: torch.device) -> float:
        time.sleep(0.05)
        return time.perf_counter()

    def step() -> None:
        began.append(time.perf_counter())
        time.sleep(0.001)

    assert power_w(step, 0.001, torch.device("cpu"), read_j=slow, watched_s=0.4) is not None
    gaps = sorted(later - earlier for earlier, later in pairwise(began))
    assert sum(gap > 0.04 for gap in gaps) <= 4, gaps[-5:]  # of eight readings, which last longer
