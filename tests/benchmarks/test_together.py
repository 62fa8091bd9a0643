"""Processes that train at once are counted together."""

from pathlib import Path

import pytest


def test_processes_train_at_once_and_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import together
    from step_time_jobs import Job, Setting
    from step_time_networks import TINY

    job = Job(TINY, "parent", 2, "whole")
    one, two = together.measured(Setting("cpu", True, tmp_path), job, [1, 2], 0.1, {})
    assert (one["together"], two["together"]) == (1, 2)
    assert 0 < one["steps_per_s"] == one["slowest"] == one["fastest"]
    assert two["steps_per_s"] == pytest.approx(two["slowest"] + two["fastest"])
    assert "threads" not in capfd.readouterr().err  # nobody had to be stopped
