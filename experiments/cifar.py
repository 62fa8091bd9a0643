"""CIFAR-10 from the official binary batches, whole on the device, and augmented there one epoch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

SOURCE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
SIDE, PADDING = 32, 4
RECORD_BYTES = 1 + 3 * SIDE * SIDE  # a label, then the red, green and blue planes
ANALYSED_IMAGES = 5000  # how many training images the paper finds principal components on


@dataclass(frozen=True)
class Images:
    """Pixels (N, 32, 32, 3) as bytes, and labels (N,)."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Images:
        return Images(self.pixels[index], self.labels[index])

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Scale:
    """What is subtracted from every channel and what it is divided by, in units of a byte; each of shape (3,)."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def unit(cls, images: Images) -> Scale:
        """Divide by 255, no more."""
        zeros = torch.zeros(3, device=images.pixels.device)
        return cls(zeros, zeros + 255)

    @classmethod
    def standardising(cls, images: Images) -> Scale:
        """Give every channel of these images mean 0 and deviation 1."""
        shares = torch.stack([plane.flatten().bincount(minlength=256) for plane in images.pixels.unbind(3)]).double()
        shares /= shares.sum(1, keepdim=True)
        values = torch.arange(256, device=shares.device, dtype=torch.double)
        mean = shares @ values
        return cls(mean.float(), (shares @ values.square() - mean.square()).sqrt().float())

    def __call__(self, pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Turn bytes (N, H, W, 3) into the input of a network: (N, 3, H, W), the channels last in memory."""
        return ((pixels - self.mean) / self.deviation).to(dtype).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Data:
    """One run's data: nine tenths of the training images, the validation images split off from them, the test set."""

    train: Images
    validation: Images
    test: Images
    scale: Scale

    @property
    def device(self) -> torch.device:
        return self.train.pixels.device

    def analysed(self) -> Iterator[Tensor]:
        """Yield what the principal components are found on: un-augmented images from the head of the random split."""
        for pixels in self.train.pixels[:ANALYSED_IMAGES].split(1000):
            yield self.scale(pixels)

    def epoch(self, batch: int, seed: int, *, augment: bool, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the full batches of one epoch; the seed alone decides their order, crops and flips."""
        generator = torch.Generator(self.device).manual_seed(seed)
        count = len(self.train) // batch * batch
        order = torch.randperm(len(self.train), generator=generator, device=self.device)[:count]
        pixels, labels = self.train.pixels[order], self.train.labels[order]
        images = self.scale(cropped_and_flipped(pixels, generator) if augment else pixels, dtype)
        yield from zip(images.split(batch), labels.split(batch), strict=True)


def load(folder: Path, *, seed: int, standardise: bool, device: torch.device) -> Data:
    """Read the batches in a folder and split off a random tenth of the training images for validation."""
    folder = find(folder)
    everything, test = read(folder, TRAIN_FILES), read(folder, TEST_FILES)
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))
    held_out = len(everything) // 10
    train = everything.take(order[held_out:]).to(device)
    scale = Scale.standardising(train) if standardise else Scale.unit(train)
    return Data(train, everything.take(order[:held_out]).to(device), test.to(device), scale)


def find(folder: Path) -> Path:
    """Return the folder that holds the batches: the one given, or the one that the archive unpacks to inside it."""
    for candidate in (folder, folder / "cifar-10-batches-bin"):
        if all((candidate / name).is_file() for name in TRAIN_FILES + TEST_FILES):
            return candidate
    raise SystemExit(
        f"{folder} does not hold CIFAR-10's binary version (data_batch_1.bin to data_batch_5.bin, test_batch.bin): "
        f"unpack {SOURCE} there"
    )


def read(folder: Path, names: tuple[str, ...]) -> Images:
    """Read binary batches: records of a label and three colour planes."""
    data = bytearray(b"".join((folder / name).read_bytes() for name in names))
    records = torch.frombuffer(data, dtype=torch.uint8).reshape(-1, RECORD_BYTES)
    pixels = records[:, 1:].reshape(-1, 3, SIDE, SIDE).permute(0, 2, 3, 1).contiguous()
    return Images(pixels, records[:, 0].long())


def cropped_and_flipped(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Pad with 4 black pixels on every side, take a random 32x32 crop of each image and flip it half of the time."""
    count, device = len(pixels), pixels.device
    padded = F.pad(pixels, (0, 0, PADDING, PADDING, PADDING, PADDING))
    corners = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator, device=device)
    flip = torch.randint(2, (count, 1), generator=generator, device=device).bool()
    steps = torch.arange(SIDE, device=device)
    rows = corners[0] + steps
    columns = corners[1] + torch.where(flip, SIDE - 1 - steps, steps)
    return padded[torch.arange(count, device=device)[:, None, None], rows[:, :, None], columns[:, None, :]]
