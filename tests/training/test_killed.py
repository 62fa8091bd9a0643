"""A run that is killed, at any time and while it writes, ends as one that never was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "killing.py"


def killed(*options: str) -> dict[str, int]:
    command = [sys.executable, str(SCRIPT), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_killed_runs_end_with_the_same_weights() -> None:
    counts = killed("--moments", "6", "--instants", "4", "--seed", "3")
    assert counts["kills"] >= 10
    assert counts["different"] == 0


@pytest.mark.slow
def test_killed_runs_end_with_the_same_weights_200_times() -> None:
    counts = killed("--moments", "150", "--instants", "60", "--seed", "4")
    assert counts["kills"] >= 200
    assert counts["different"] == 0
