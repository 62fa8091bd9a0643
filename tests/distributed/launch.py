"""Starting real processes under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pcn

HERE = Path(__file__).parent
LIBRARY = Path(pcn.__file__).parents[1]


def torchrun(
    script: str, processes: int, *arguments: str, device: str = "cpu", timeout_s: float = 150
) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder in so many processes; its output is kept, and a hang is an error."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    folders = os.pathsep.join([str(HERE.parent), str(LIBRARY)])  # which need not be installed
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": folders, "PCN_TEST_DEVICE": device}
    return subprocess.run(
        [*command, str(HERE / script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def check_all(script: str, processes: int, device: str = "cpu") -> None:
    """Run a script's checks on every rank; each of them says when it has passed."""
    done = torchrun(script, processes, device=device)
    assert done.returncode == 0, done.stdout
    names = [line.split("(")[0].removeprefix("def ") for line in (HERE / script).read_text().splitlines()]
    checks = [name for name in names if name.startswith("check_")]
    assert checks
    missing = [name for name in checks if done.stdout.count(f"passed {name} on rank") != processes]
    assert not missing, done.stdout
