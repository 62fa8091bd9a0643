"""scikit-learn's digits as the demo uses them: pixels in [0, 1], whole in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pcn.training.settings import Settings
from pcn.training.sources import digits


@dataclass(frozen=True)
class Images:
    """Images (N, 1, 8, 8) with pixels in [0, 1], and their labels (N,)."""

    images: Tensor
    labels: Tensor

    def take(self, index: Tensor) -> Images:
        return Images(self.images[index], self.labels[index])


@dataclass(frozen=True)
class Digits:
    """A random split into training, validation and test images."""

    train: Images
    validation: Images
    test: Images


def load_digits(seed: int) -> Digits:
    """Load the digits and split them by a seed."""
    data = digits.load(Settings(scale="unit", seed=seed))
    parts = (data.train, data.held_out, data.tested)
    return Digits(*(Images(data.scale(part.pixels), part.labels) for part in parts))
