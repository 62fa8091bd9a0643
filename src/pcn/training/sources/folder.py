"""A folder of images, one sub-folder for each class: ``train/<class>/*.jpg``, ``val/<class>/*.jpg``."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import torch

from pcn.errors import ConfigError, DataError
from pcn.training.images import Scale
from pcn.training.pictures import Crop, Pictures, Reader, random_rectangle, random_square
from pcn.training.settings import Settings
from pcn.training.streaming import ImageStream

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's training images, pixels in [0, 1]
CROPS: dict[str, Crop | None] = {
    "none": None,
    "crop-flip": random_square,
    "resized-crop": random_rectangle,
    "resized-crop-colour": random_rectangle,
}
OPTIONS: dict[str, Any] = {"size": 224, "workers": 0, "validation": None}


def load(settings: Settings) -> ImageStream:
    """List the images; ``data_options`` may give ``size`` (224), ``workers`` (0) and ``validation``.

    ``validation`` is the number of training images that are held out, a tenth by default; ``val/`` is the test set.
    """
    _check_pillow()
    options = _options(settings)
    if settings.data_dir is None:
        raise DataError("folder needs data_dir (--data-dir), a folder with train/<class>/ and val/<class>/ inside")
    root = Path(settings.data_dir)
    if not root.is_dir():
        raise DataError(f"there is no folder {root}")
    classes = _classes(root / "train")
    train = _files(root / "train", classes)
    random.Random(settings.seed).shuffle(train)
    count = max(1, len(train) // 10) if options["validation"] is None else options["validation"]
    if not 1 <= count < len(train):
        raise DataError(
            f"{root / 'train'} holds {len(train)} images, of which {count} are to be held out: there must be some to "
            "train on and some to validate on"
        )
    return ImageStream(
        train=_pictures(train[count:]),
        held_out=_pictures(train[:count]),
        tested=_pictures(_files(root / "val", classes)),
        reader=Reader(options["size"]),
        scale=_scale(settings.scale),
        crop=CROPS[settings.augment],
        recolour=settings.augment.endswith("colour"),
        workers=options["workers"],
    )


def _options(settings: Settings) -> dict[str, Any]:
    for name, value in settings.data_options.items():
        if name not in OPTIONS:
            raise ConfigError(f"data_options has {name!r}: a folder of images takes {', '.join(OPTIONS)}")
        least = 0 if name == "workers" else 1
        if type(value) is not int or value < least:
            raise ConfigError(f"data_options has {name}={value!r}: give a whole number of at least {least}")
    return {**OPTIONS, **settings.data_options}


def _scale(name: str) -> Scale:
    mean, deviation = 255 * torch.tensor(MEAN), 255 * torch.tensor(DEVIATION)
    if name == "unit":
        return Scale(torch.zeros(3), torch.full((3,), 255.0))
    return Scale(mean, deviation if name == "standardise" else torch.ones(3))


def _check_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise DataError("images are read with Pillow, which is not installed: pip install pillow") from error


def _classes(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not names:
        raise DataError(f"{folder} has no sub-folders with images: there must be one for each class")
    return names


def _files(folder: Path, classes: list[str]) -> list[tuple[str, int]]:
    found = [(path, label) for label, name in enumerate(classes) for path in sorted(_images_under(folder / name))]
    if not found:
        raise DataError(f"{folder} holds no images ({', '.join(SUFFIXES)}) in folders like {classes[0]!r}")
    return found


def _images_under(folder: Path) -> list[str]:
    """Plain strings: a million of them are small, and listed fast."""
    return [
        os.path.join(inside, name)
        for inside, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(SUFFIXES)
    ]


def _pictures(files: list[tuple[str, int]]) -> Pictures:
    return Pictures(tuple(path for path, _ in files), tuple(label for _, label in files))
