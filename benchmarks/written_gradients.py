"""Whether a gradient that a basis brings back is better multiplied once and written, or multiplied in both passes.

    python benchmarks/written_gradients.py                      # some sizes of WideResNets, on the GPU
    python benchmarks/written_gradients.py --rows 64 --device cpu --out FILE

The whole of ``norm_project_backward`` in both ways, in microseconds, with the launches that are the fastest of those
that are timed first: what ``pcn.kernels.dispatch.WRITTEN_FROM`` is by. Results:
benchmarks/results/written_gradients.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from pcn.kernels import norm_project_backward, tuning
from pcn.whole_files import write_whole
from step_time_kernels import time_s

RESULT = Path(__file__).parent / "results" / "written_gradients.json"
SIZES = [(65536, 256, 64), (262144, 512, 128), (65536, 1024, 256), (12544, 1024, 512)]  # rows, width, rank
NEVER, ALWAYS = 10**9, 1  # directions from which a gradient is written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="of every size, in place of the usual numbers")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    device = torch.device(given.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    origin = {"device": name, "torch": torch.__version__}
    records: list[dict[str, Any]] = []
    for rows, width, rank in SIZES:
        call = backward(given.rows or rows, width, rank, device)
        times = {"written_us": time_us(call, ALWAYS, device), "twice_us": time_us(call, NEVER, device)}
        records.append({"rows": given.rows or rows, "width": width, "rank": rank} | times)
        print(records[-1], flush=True)
        write_whole(given.out, (json.dumps({**origin, "records": records}, indent=1) + "\n").encode())


def backward(rows: int, width: int, rank: int, device: torch.device) -> Callable[[], Any]:
    """A call of the pass back, with random numbers."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    z, d_projected = (torch.randn(rows, size, device=device).to(dtype) for size in (width, rank))
    basis = torch.linalg.qr(torch.randn(width, rank, device=device))[0].to(dtype).contiguous()
    ones, zeros = torch.ones(width, device=device), torch.zeros(width, device=device)
    norm = ones, zeros, zeros, ones  # weight, bias, mean, inverse standard deviation
    return partial(norm_project_backward, d_projected, None, z, None, None, *norm, basis, True, True)


def time_us(call: Callable[[], Any], written_from: int, device: torch.device) -> float:
    """Microseconds of a call where gradients are written from so many directions on."""
    with mock.patch("pcn.kernels.dispatch.WRITTEN_FROM", written_from):
        with tuning():
            call()
        return round(1e6 * time_s(call, device), 1)


if __name__ == "__main__":
    main()
