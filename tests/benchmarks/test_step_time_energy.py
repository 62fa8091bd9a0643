"""A GPU's power is read between ticks of its counter, not between whatever moments a measurement begins and ends."""

from __future__ import annotations

import time

import pytest
import torch

TICK_S, WATTS = 0.05, 400.0


def test_a_counter_that_ticks_says_what_is_drawn() -> None:
    from step_time_energy import power_w

    def read(device: torch.device) -> float:
        return WATTS * TICK_S * int(time.perf_counter() / TICK_S)

    found = power_w(lambda: time.sleep(0.001), 0.001, torch.device("cpu"), read_j=read, watched_s=0.4)
    assert found == pytest.approx(WATTS, rel=0.15)  # a tick is seen up to a chunk of 10 ms late


def test_without_a_counter_nothing_is_said() -> None:
    from step_time_energy import power_w

    assert power_w(list, 1.0, torch.device("cpu")) is None
    assert power_w(list, 1.0, torch.device("cpu"), read_j=lambda device: 7.0, watched_s=0.01) is None  # it stands still
