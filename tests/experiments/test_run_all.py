"""Everything in one command: its lines are ones that the scripts take, and what takes too long is stopped."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

import pytest


def test_every_script_takes_its_line() -> None:
    import run_all

    options = argparse.Namespace(data=Path("cifar"), mnist=None)
    lines = [*(line for lane in run_all.LANES.values() for line in lane), run_all.ALONE[0]]
    for line in lines:
        script, *given = run_all.command(line, options)
        parsed = importlib.import_module(Path(script).stem).arguments().parse_args([*given, "--time-limit", "5"])
        assert str(parsed.data) == "cifar"
        assert parsed.time_limit == 5
        alone = line in run_all.ALONE
        assert alone != (parsed.together > 1 or parsed.shared)  # times are kept of what runs alone only


def test_a_command_that_takes_too_long_is_stopped_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import run_all

    monkeypatch.setattr(run_all, "GRACE_S", 0.1)
    log, environment = tmp_path / "log", dict(os.environ)
    assert run_all.run([sys.executable, "-c", "print('done')"], log, 30, environment) == 0
    assert log.read_text() == "done\n"
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    started = time.monotonic()
    assert run_all.run([sys.executable, "-c", child], log, 0.5, environment) is None
    assert time.monotonic() - started < 20


def test_a_lane_goes_on_until_its_time_is_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import run_all

    options = argparse.Namespace(data=Path("x"), mnist=None, logs=tmp_path)
    run_all.run_lane("lane", ["nowhere.py", "nowhere.py"], options, time.time() + 30, dict(os.environ))
    assert capsys.readouterr().out.count("nowhere.py ended with 2") == 2  # a script that fails stops no other
    run_all.run_lane("lane", ["nowhere.py"], options, time.time(), dict(os.environ))
    assert "the time is up" in capsys.readouterr().out
