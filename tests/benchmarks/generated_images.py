"""Data for the tests of the comparison."""

from __future__ import annotations

import torch

from pcn.training import ImageData, Images, Scale


def small_data(size: int = 16) -> ImageData:
    """Small images, brighter with the class: 64 to train on, 100 to validate on, 100 to test on."""
    generator = torch.Generator().manual_seed(0)
    train, held_out, tested = (_images(number, size, generator) for number in (64, 100, 100))
    return ImageData(train, held_out, tested, Scale.standardising(train))


def _images(number: int, size: int, generator: torch.Generator) -> Images:
    labels = torch.randint(10, (number,), generator=generator)
    noise = torch.randint(60, (number, size, size, 3), dtype=torch.uint8, generator=generator)
    return Images(noise + (20 * labels).to(torch.uint8)[:, None, None, None], labels)
