"""scikit-learn's digits: 1,797 grey images of 8x8 pixels, which come with the package."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pcn.errors import PCNError

TRAIN, VALIDATION = 897, 300  # the remaining 600 are the test set


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
    try:
        from sklearn import datasets
    except ImportError as error:
        raise PCNError(
            "the demo's data come with scikit-learn, which is not installed: pip install scikit-learn"
        ) from error
    pixels, labels = datasets.load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    everything = Images(images, torch.tensor(labels, dtype=torch.long))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split((TRAIN, TRAIN + VALIDATION))
    return Digits(*(everything.take(part) for part in parts))
