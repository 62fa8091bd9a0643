"""Images as bytes on the device, what turns them into a network's input, and how they are augmented there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pcn.errors import ConfigError

Augment = Callable[[Tensor, torch.Generator], Tensor]  # bytes (N, H, W, C) -> bytes of the same shape


@dataclass(frozen=True)
class Images:
    """Pixels (N, H, W, C) as bytes, and labels (N,)."""

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
    """What is subtracted from every channel and what it is divided by, in units of a byte; each of shape (C,)."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def named(cls, name: str, images: Images, largest: int = 255) -> Scale:
        """What a setting asks for, of images whose brightest pixel is ``largest``."""
        if name == "unit":
            return cls.unit(images, largest)
        scale = cls.standardising(images)
        return scale if name == "standardise" else cls(scale.mean, torch.ones_like(scale.deviation))

    @classmethod
    def unit(cls, images: Images, largest: int = 255) -> Scale:
        """Bring pixels to [0, 1], no more."""
        zeros = torch.zeros(images.pixels.shape[3], device=images.pixels.device)
        return cls(zeros, zeros + largest)

    @classmethod
    def standardising(cls, images: Images) -> Scale:
        """Give every channel of these images mean 0 and deviation 1; one that is the same everywhere becomes 0."""
        shares = torch.stack([plane.flatten().bincount(minlength=256) for plane in images.pixels.unbind(3)]).double()
        shares /= shares.sum(1, keepdim=True)
        values = torch.arange(256, device=shares.device, dtype=torch.double)
        mean = shares @ values
        deviation = (shares * (values - mean[:, None]).square()).sum(1).sqrt().float()
        return cls(mean.float(), deviation.where(deviation > 0, 1))

    def to(self, device: torch.device) -> Scale:
        return Scale(self.mean.to(device), self.deviation.to(device))

    def __call__(self, pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Turn pixels (N, H, W, C) into the input of a network: (N, C, H, W), the channels last in memory."""
        scaled = ((pixels - self.mean) / self.deviation).to(dtype)
        # With one channel both layouts are the same; a view has the strides that everybody expects.
        return scaled.view(len(pixels), 1, *pixels.shape[1:3]) if pixels.shape[3] == 1 else scaled.permute(0, 3, 1, 2)


def cropped_and_flipped(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Pad by an eighth of the side with black, take a random crop of the old size, and flip it half of the time."""
    count, device = len(pixels), pixels.device
    height, width = pixels.shape[1:3]
    padding = height // 8
    padded = F.pad(pixels, (0, 0, padding, padding, padding, padding))
    corners = torch.randint(2 * padding + 1, (2, count, 1), generator=generator, device=device)
    flip = torch.randint(2, (count, 1), generator=generator, device=device).bool()
    rows = corners[0] + torch.arange(height, device=device)
    across = torch.arange(width, device=device)
    columns = corners[1] + torch.where(flip, width - 1 - across, across)
    return padded[torch.arange(count, device=device)[:, None, None], rows[:, :, None], columns[:, None, :]]


AUGMENTATIONS: dict[str, Augment | None] = {"none": None, "crop-flip": cropped_and_flipped}


def augmentation(name: str) -> Augment | None:
    """What a setting asks for, of images that all have one size."""
    if name not in AUGMENTATIONS:
        known = ", ".join(AUGMENTATIONS)
        raise ConfigError(f"augment={name!r} is for a folder of images of many sizes: choose one of {known}")
    return AUGMENTATIONS[name]
