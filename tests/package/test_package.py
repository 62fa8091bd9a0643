"""Wheel and sdist hold what they should, and work in an environment that has nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_wheel_and_sdist_install_into_an_empty_environment() -> None:
    run = subprocess.run(
        ["make", "package", f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("are fine") == 2
    with tarfile.open(next((ROOT / "dist").glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = "README.md LICENSE CITATION.cff SECURITY.md constraints.txt Makefile src/pcn/py.typed docs/index.md"
    wanted += " tests/package/test_package.py notebooks/tour.ipynb examples/plain_pytorch.py"
    assert set(wanted.split()) - names == set()
    assert [name for name in names if "__pycache__" in name or name.startswith((".venv", "data/", "runs/"))] == []
