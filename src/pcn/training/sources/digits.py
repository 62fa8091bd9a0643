"""scikit-learn's digits: 1,797 grey images of 8x8 pixels, which come with the package."""

from __future__ import annotations

import torch

from pcn.errors import DataError
from pcn.training.data import ImageData
from pcn.training.images import Images, Scale, augmentation
from pcn.training.settings import Settings

TRAIN, VALIDATION = 897, 300  # the remaining 600 are the test set
BRIGHTEST = 16


def load(settings: Settings) -> ImageData:
    """Load the digits and split them by the seed."""
    everything = read()
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(settings.seed))
    train, held_out, test = (everything.take(part) for part in order.tensor_split((TRAIN, TRAIN + VALIDATION)))
    scale = Scale.named(settings.scale, train, BRIGHTEST)
    return ImageData(train, held_out, test, scale, augmentation(settings.augment))


def read() -> Images:
    """All images, with pixels from 0 to 16."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError("the digits come with scikit-learn, which is missing: pip install scikit-learn") from error
    pixels, labels = datasets.load_digits(return_X_y=True)
    return Images(torch.tensor(pixels, dtype=torch.uint8).reshape(-1, 8, 8, 1), torch.tensor(labels, dtype=torch.long))
