"""Data read sample by sample while training goes on, from anything with ``len`` and an index."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pcn.training.data import ALONE, Batch, Share, epoch_seed

CPU = torch.device("cpu")


class Samples(Sized, Protocol):
    """A map-style data set of (input, label) pairs."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]: ...


@dataclass(frozen=True)
class SampleData:
    """Map-style data sets, loaded by worker processes.

    ``train`` may draw random numbers (Python's, torch's) to augment: they are seeded for each sample and epoch, so that
    a run can be taken up anywhere. ``plain`` is ``train`` without augmentation, to calibrate on.
    """

    train: Samples
    plain: Samples
    held_out: Samples
    tested: Samples
    workers: int = 0
    device: torch.device = CPU

    def to(self, device: torch.device, dtype: torch.dtype) -> SampleData:
        return SampleData(self.train, self.plain, self.held_out, self.tested, self.workers, device)

    def steps(self, batch: int) -> int:
        return len(self.train) // batch

    def epoch(self, number: int, *, batch: int, seed: int, start: int = 0, share: Share = ALONE) -> Iterator[Batch]:
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(epoch_seed(seed, number)))
        own = share.of(batch)
        batches = [order[i * batch : (i + 1) * batch][own].tolist() for i in range(start, self.steps(batch))]
        return self._load(_Seeded(self.train, f"{seed}:{number}"), batches)

    def validation(self, share: Share = ALONE) -> Iterator[Batch]:
        return self._load(self.held_out, share.among(_in_order(len(self.held_out))))

    def test(self, share: Share = ALONE) -> Iterator[Batch]:
        return self._load(self.tested, share.among(_in_order(len(self.tested))))

    def calibration(self, count: int, share: Share = ALONE) -> Iterator[Tensor]:
        order = torch.randperm(len(self.plain), generator=torch.Generator().manual_seed(0))[:count].tolist()
        batches = [order[start : start + 100] for start in range(0, len(order), 100)]
        return (inputs for inputs, _ in self._load(self.plain, share.among(batches)))

    def _load(self, samples: Any, batches: Iterable[list[int]]) -> Iterator[Batch]:
        pinned = self.device.type == "cuda"
        loader: DataLoader[Batch] = DataLoader(
            samples,
            batch_sampler=list(batches),
            num_workers=self.workers,
            pin_memory=pinned,
            generator=torch.Generator(),  # else it draws a seed from the run's own random numbers
        )
        for inputs, labels in loader:
            yield inputs.to(self.device, non_blocking=pinned), labels.to(self.device, non_blocking=pinned)


def _in_order(count: int, batch: int = 250) -> list[list[int]]:
    return [list(range(start, min(start + batch, count))) for start in range(0, count, batch)]


class _Seeded(Dataset[tuple[Tensor, int]]):
    """Seeds random numbers for every sample, and gives the process's own back afterwards."""

    def __init__(self, samples: Samples, key: str) -> None:
        self.samples, self.key = samples, key

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        seed = random.Random(f"{self.key}:{index}").getrandbits(63)
        state = random.getstate()
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                random.seed(seed)
                return self.samples[index]
        finally:
            random.setstate(state)
