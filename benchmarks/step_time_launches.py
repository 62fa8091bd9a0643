"""The fastest launch of every kernel that networks use: compiled by many processes, then timed by one alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from zlib import crc32

import torch
from torch.nn import functional as F

from pcn.kernels import tuning
from pcn.training.step import autocast
from step_time_jobs import Job, Result, Setting, prepare

PROCESSES = 14  # that compile; what is to be compiled is shared out by name
SMALL = 64  # samples: launches are compiled for any number of them


def compile_launches(setting: Setting, jobs: Sequence[Job], part: int) -> Iterator[Result]:
    """Compile one part of all launches; how long they take while others do the same says nothing."""
    with tuning(anew=True, only=lambda key: crc32(key.encode()) % PROCESSES == part):
        for job in jobs:
            step_once(setting, replace(job, batch=min(job.batch, SMALL)))
    yield {}


def time_launches(setting: Setting, jobs: Sequence[Job]) -> Iterator[Result]:
    """Time all launches and keep the fastest."""
    for job in jobs:
        with tuning(setting.launches, anew=True):
            step_once(setting, job)
        yield {"network": job.model, "role": job.role}


def step_once(setting: Setting, job: Job) -> None:
    """One step forward and back, as PyTorch runs it."""
    model, images, labels = prepare(setting, job)
    with autocast(images.device):
        loss = F.cross_entropy(model.train()(images), labels)
    loss.backward()
    if setting.cuda:
        torch.cuda.synchronize()
