"""Image files of any size, read as squares of bytes: the middle of a picture, or a random part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from pcn.errors import DataError

Box = tuple[float, float, float, float]  # left, top, right, bottom
Crop = Callable[[int, int, Random], Box]  # a part of a picture so wide and so high, drawn at random

KEPT = 224 / 256  # of a picture's shorter side


@dataclass(frozen=True)
class Pictures:
    """Files and their labels."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class Reader:
    """Reads a picture as (size, size, 3) bytes."""

    size: int

    def __call__(self, path: str, crop: Crop | None = None, random: Random | None = None) -> Tensor:
        """Read the middle, or with ``crop`` a part that is drawn at random."""
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(path) as opened:
                width, height = opened.size
                box = middle(width, height) if crop is None or random is None else crop(width, height, random)
                # A JPEG can be decoded at half, a quarter, an eighth of its size where no more is needed.
                share = min(1.0, self.size / min(box[2] - box[0], box[3] - box[1]))
                opened.draft("RGB", (round(width * share), round(height * share)))
                smaller = opened.size[0] / width
                image = opened.convert("RGB").resize(
                    (self.size, self.size), Image.Resampling.BILINEAR, box=_within(box, smaller, opened.size)
                )
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise DataError(f"cannot read the image {path}: {error}; repair or remove it") from error
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(self.size, self.size, 3)


def middle(width: int, height: int) -> Box:
    """The centre crop of 224 pixels from a picture whose shorter side is scaled to 256.

    >>> middle(512, 256)
    (144.0, 16.0, 368.0, 240.0)
    """
    side = min(width, height) * KEPT
    return ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)


def random_square(width: int, height: int, random: Random) -> Box:
    """A crop of that size anywhere in the picture."""
    side = min(width, height) * KEPT
    left, top = random.uniform(0, width - side), random.uniform(0, height - side)
    return (left, top, left + side, top + side)


def random_rectangle(width: int, height: int, random: Random) -> Box:
    """A part with 8% to 100% of the area, its sides within 3:4 and 4:3; the middle where ten draws do not fit."""
    for _ in range(10):
        area, ratio = random.uniform(0.08, 1) * width * height, random.uniform(3 / 4, 4 / 3)
        across, down = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        if across <= width and down <= height:
            left, top = random.uniform(0, width - across), random.uniform(0, height - down)
            return (left, top, left + across, top + down)
    return middle(width, height)


def _within(box: Box, scale: float, size: tuple[int, int]) -> Box:
    """A box of a picture that was decoded at another size, no further out than that reaches."""
    left, top, right, bottom = (edge * scale for edge in box)
    return (left, top, min(right, size[0]), min(bottom, size[1]))
