"""NVIDIA's Multi-Process Service: runs at once then share the GPU without taking turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

PROBE = "import torch; torch.ones(8, device='cuda').sum().item()"


@contextmanager
def shared_gpu() -> Iterator[dict[str, str]]:
    """Yield the environment in which processes share the GPU; where the service does not work, the plain one."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        places = {f"CUDA_MPS_{kind}_DIRECTORY": folder for kind in ("PIPE", "LOG")}
        environment = {**os.environ, **places}
        subprocess.run([control, "-d"], env=environment, check=False, capture_output=True, timeout=30)
        try:
            works = _probe(environment)
            print("the GPU is shared by MPS" if works else "MPS does not work here: runs take turns", flush=True)
            yield environment if works else dict(os.environ)
        finally:
            subprocess.run([control], env=environment, input=b"quit\n", check=False, capture_output=True, timeout=30)


def _probe(environment: dict[str, str]) -> bool:
    """Whether a process under the service can use the GPU at all."""
    command = [sys.executable, "-c", PROBE]
    try:
        return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
