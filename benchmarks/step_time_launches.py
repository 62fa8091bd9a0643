"""The fastest launch of every kernel that networks use: their calls are noted, compiled side by side, and timed alone.

Only the sizes of a call count, so it is made again with random numbers: no process but one has to build a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from pcn.kernels import tuning
from pcn.training.step import autocast, training_dtype
from step_time_jobs import Job, Result, Setting, prepare
from step_time_kernels import cases

PROCESSES = 14  # that compile; what is to be compiled is shared out by name
NOTED = 37  # samples of a network whose calls are noted: a size that it divides is one that grows with their number
SMALL = 32  # samples of a call that is compiled, which is the same for any number
TUNED = ("batch_moments", "add_moments", "norm_project", "norm_project_backward", "narrow_conv", "narrow_conv_weight",
         "narrow_conv_input", "project")  # fmt: skip


@dataclass(frozen=True)
class Like:
    """A tensor by its sizes; ``per_sample`` rows of the first for every sample, 0 where samples do not count."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool
    per_sample: int

    def make(self, samples: int, device: torch.device) -> Tensor:
        first = self.per_sample * samples if self.per_sample else self.shape[0]
        made = torch.randn(first, *self.shape[1:], device=device).to(self.dtype)
        return made.contiguous(memory_format=torch.channels_last) if self.channels_last else made


@dataclass(frozen=True)
class Call:
    """One call of an operator of ours."""

    name: str
    arguments: tuple[Any, ...]

    def run(self, samples: int, device: torch.device) -> None:
        made = [each.make(samples, device) if isinstance(each, Like) else each for each in self.arguments]
        getattr(torch.ops.pcn, self.name)(*made)


class Noted(TorchDispatchMode):
    """Notes the calls of operators of ours for which there are several launches."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Call, None] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().removeprefix("pcn::").split(".")[0]
        if function.namespace == "pcn" and name in TUNED:
            self.calls[Call(name, tuple(map(like, args)))] = None
        return function(*args, **(kwargs or {}))


def like(value: Any) -> Any:
    """What is noted of an argument."""
    if not isinstance(value, Tensor):
        return value
    per_sample, rest = divmod(value.shape[0], NOTED)
    last = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)
    return Like(tuple(value.shape), value.dtype, last, 0 if rest else per_sample)


def note_calls(setting: Setting, job: Job) -> Iterator[Result]:
    """The calls of one step forward and back, as PyTorch runs it."""
    model, images, labels = prepare(setting, replace(job, batch=NOTED))
    with autocast(images.device), Noted() as noted:
        F.cross_entropy(model.train()(images), labels).backward()
    yield {"calls": list(noted.calls)}


def note_cases(setting: Setting, stage: tuple[int, int, int]) -> Iterator[Result]:
    """The calls of one stage in the table of kernels."""
    width, rank, positions = stage
    dtype = training_dtype(torch.device(setting.device))
    with Noted() as noted:
        for case in cases(width, rank, NOTED * positions, torch.device(setting.device), dtype, positions):
            case.run()
    yield {"calls": list(noted.calls)}


def compile_launches(setting: Setting, calls: Sequence[Call], part: int) -> Iterator[Result]:
    """Compile one part of all launches; how long they take while others do the same says nothing.

    A part is the same for any number of samples: kernels are shared out by what they are called, not by their rows.
    """
    with tuning(anew=True, only=lambda key: wanted(setting, key) and crc32(key.encode()) % PROCESSES == part):
        for call in calls:
            call.run(SMALL, torch.device(setting.device))
    yield {}


def time_launches(setting: Setting, timed: Sequence[tuple[Call, int]]) -> Iterator[Result]:
    """Time all launches of calls at numbers of samples, and keep the fastest.

    Of several numbers that make about as many rows the largest counts: what is known by then is not timed again.
    """
    with tuning(setting.launches, anew=True, only=lambda key: wanted(setting, key)):
        for call, samples in sorted(timed, key=lambda each: -each[1]):
            call.run(samples, torch.device(setting.device))
    yield {"launches": str(setting.launches)}


def wanted(setting: Setting, key: str) -> bool:
    """Whether a kernel is to be timed, by device, name and sizes: all are, or those that were named."""
    return not setting.tuned or any(f" {name} " in key for name in setting.tuned)
