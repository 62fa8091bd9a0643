"""Scripts run as their first lines say: from the repository, without a path that somebody has to set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in ("benchmarks", "experiments")
    for path in (ROOT / folder).glob("*.py")
    if "ArgumentParser(" in path.read_text() and "__main__" in path.read_text()
)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_says_what_it_can_be_given(script: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script), "--help"]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert str(script) in said.stdout
