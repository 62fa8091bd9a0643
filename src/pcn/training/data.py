"""What a training loop asks of its data, and images that lie on the device as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from pcn.errors import ConfigError
from pcn.training.images import Augment, Images, Scale

Batch = tuple[Tensor, Tensor]  # inputs and labels
Item = TypeVar("Item")
EVALUATED = 2500  # images at a time where no gradients are kept
SEEDS = 2**63  # as many as every generator of torch takes


@dataclass(frozen=True)
class Share:
    """The part of every batch that this process takes: one of ``count``."""

    index: int = 0
    count: int = 1

    def of(self, batch: int) -> slice:
        """The samples of a batch that are this process's own."""
        if batch % self.count:
            raise ConfigError(
                f"a batch of {batch} does not split over {self.count} processes: give a multiple of {self.count}"
            )
        size = batch // self.count
        return slice(self.index * size, (self.index + 1) * size)

    def among(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The batches that are this process's own, where the processes take turns."""
        return islice(batches, self.index, None, self.count)


ALONE = Share()


@dataclass(frozen=True)
class Again(Generic[Item]):
    """Batches that can be gone through more than once, made anew each time."""

    make: Callable[[], Iterator[Item]]

    def __iter__(self) -> Iterator[Item]:
        return self.make()


class Data(Protocol):
    """Batches for training, and samples to validate, test and calibrate on; all of them on the device.

    An epoch's batches depend on the seed and the epoch's number alone, so that a run can take up in the middle of one.
    """

    def steps(self, batch: int) -> int:
        """The number of full batches in an epoch."""

    def epoch(self, number: int, *, batch: int, seed: int, start: int, share: Share) -> Iterator[Batch]:
        """Yield this process's share of an epoch's full batches, from the one with index ``start``."""

    def validation(self, share: Share = ALONE) -> Iterator[Batch]:
        """Yield samples to choose by, in batches that the processes share out."""

    def test(self, share: Share = ALONE) -> Iterator[Batch]:
        """Yield samples to judge by in the end."""

    def calibration(self, count: int, share: Share = ALONE) -> Iterator[Tensor]:
        """Yield this process's share of so many training samples without augmentation; always the same ones."""


def labels_end(labels: Tensor) -> int:
    """One more than the largest label where they number classes, and 0 where they are anything else.

    >>> labels_end(torch.tensor([3, 0, -100])), labels_end(torch.tensor([0.5, 7.0]))
    (4, 0)
    """
    numbers = labels.dim() == 1 and not (labels.is_floating_point() or labels.is_complex())
    return max(0, int(labels.max()) + 1) if numbers and len(labels) else 0


@dataclass(frozen=True)
class ImageData:
    """Images split into three, whole on the device."""

    train: Images
    held_out: Images
    tested: Images
    scale: Scale
    augment: Augment | None = None
    dtype: torch.dtype = torch.float32

    def to(self, device: torch.device, dtype: torch.dtype) -> ImageData:
        train, held_out, tested = (part.to(device) for part in (self.train, self.held_out, self.tested))
        return ImageData(train, held_out, tested, self.scale.to(device), self.augment, dtype)

    @property
    def outputs_needed(self) -> int:
        """How many outputs a classifier of these images must have."""
        return max(labels_end(part.labels) for part in (self.train, self.held_out, self.tested))

    def steps(self, batch: int) -> int:
        return len(self.train) // batch

    def epoch(self, number: int, *, batch: int, seed: int, start: int = 0, share: Share = ALONE) -> Iterator[Batch]:
        device = self.train.pixels.device
        generator = torch.Generator(device).manual_seed(epoch_seed(seed, number))
        order = torch.randperm(len(self.train), generator=generator, device=device)[: self.steps(batch) * batch]
        chosen = self.train.take(order)
        pixels = chosen.pixels if self.augment is None else self.augment(chosen.pixels, generator)
        inputs, own = self.scale(pixels, self.dtype), share.of(batch)
        for index in range(start, self.steps(batch)):
            part = slice(index * batch, (index + 1) * batch)
            yield inputs[part][own], chosen.labels[part][own]

    def validation(self, share: Share = ALONE) -> Iterator[Batch]:
        return self._plain(self.held_out, share)

    def test(self, share: Share = ALONE) -> Iterator[Batch]:
        return self._plain(self.tested, share)

    def calibration(self, count: int, share: Share = ALONE) -> Iterator[Tensor]:
        for pixels in share.among(self.train.pixels[:count].split(1000)):
            yield self.scale(pixels)

    def _plain(self, images: Images, share: Share) -> Iterator[Batch]:
        batches = zip(images.pixels.split(EVALUATED), images.labels.split(EVALUATED), strict=True)
        for pixels, labels in share.among(batches):
            yield self.scale(pixels, self.dtype), labels


@dataclass(frozen=True)
class Contiguous:
    """Data whose inputs lie in memory in the order of their sizes, where images have their channels last otherwise."""

    of: Data

    @property
    def outputs_needed(self) -> int:
        return getattr(self.of, "outputs_needed", 0)

    def steps(self, batch: int) -> int:
        return self.of.steps(batch)

    def epoch(self, number: int, *, batch: int, seed: int, start: int, share: Share) -> Iterator[Batch]:
        return _in_order(self.of.epoch(number, batch=batch, seed=seed, start=start, share=share))

    def validation(self, share: Share = ALONE) -> Iterator[Batch]:
        return _in_order(self.of.validation(share))

    def test(self, share: Share = ALONE) -> Iterator[Batch]:
        return _in_order(self.of.test(share))

    def calibration(self, count: int, share: Share = ALONE) -> Iterator[Tensor]:
        return (inputs.contiguous() for inputs in self.of.calibration(count, share))


def _in_order(batches: Iterator[Batch]) -> Iterator[Batch]:
    return ((inputs.contiguous(), labels) for inputs, labels in batches)


def epoch_seed(seed: int, number: int) -> int:
    """The seed of one epoch of a run.

    >>> epoch_seed(3, 12), 0 <= epoch_seed(2**63 - 1, 12) < 2**63
    (30012, True)
    """
    return (seed * 10_000 + number) % SEEDS


def split_off(images: Images, count: int, seed: int) -> tuple[Images, Images]:
    """Split a random part off for validation; returns the rest, in random order, and that part."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images.take(order[count:]), images.take(order[:count])
