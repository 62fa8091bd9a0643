"""What the scripts that run under torchrun share."""

from __future__ import annotations

import datetime
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pcn.training.world import leave

WAITING_S = 60  # a rank that waits longer than this for the others fails


def run_checks(names: Mapping[str, Any]) -> None:
    """Join the other processes and run every function called ``check_...`` on all of them."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=WAITING_S))
    for name, check in list(names.items()):
        if name.startswith("check_"):
            torch.manual_seed(0)
            check()
            sys.stdout.write(f"passed {name} on rank {dist.get_rank()}\n")  # in one piece, unlike print
            sys.stdout.flush()
    dist.barrier()
    leave(0)


def everyones(value: Any) -> list[Any]:
    """What every rank has, in the order of ranks."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def same_everywhere(value: Any) -> bool:
    values = everyones(value)
    return all(other == values[0] for other in values)


def raised(work: Callable[[], object]) -> Exception:
    """The error that something raises, within seconds."""
    start = time.monotonic()
    try:
        work()
    except Exception as error:
        assert time.monotonic() - start < 20, "it raised, but late"
        return error
    raise AssertionError("nothing was raised")


def near(first: Tensor, second: Tensor, tolerance: float) -> None:
    scale = second.abs().max().clamp_min(1e-12)
    distance = float(((first - second).abs().max() / scale).detach())
    assert first.shape == second.shape
    assert distance <= tolerance, f"{distance} apart"
