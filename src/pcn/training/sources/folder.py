"""A folder of images, one sub-folder for each class: ``train/<class>/*.jpg``, ``val/<class>/*.jpg``."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pcn.errors import ConfigError, DataError
from pcn.training.datasets import SampleData
from pcn.training.settings import Settings

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm"}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of pixels in [0, 1]
VALIDATION_SHARE = 10


@dataclass(frozen=True)
class FolderImages:
    """Images read as they are asked for: the middle of each, or a random part of it, as ``size`` x ``size`` pixels."""

    files: tuple[tuple[Path, int], ...]
    size: int
    augmented: bool
    standardised: bool

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image, UnidentifiedImageError

        path, label = self.files[index]
        try:
            with Image.open(path) as opened:
                image = opened.convert("RGB")
                box = _random_part(image.size) if self.augmented else _middle(image.size)
                image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"cannot read the image {path}: {error}; repair or remove it") from error
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(self.size, self.size, 3)
        scaled = pixels.permute(2, 0, 1).float() / 255
        if self.standardised:
            scaled = (scaled - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
        flipped = self.augmented and random.random() < 0.5
        return (scaled.flip(2) if flipped else scaled).contiguous(), label


def load(settings: Settings) -> SampleData:
    """List the images; ``data_options`` may give ``size`` (224 by default) and ``workers``."""
    _check_pillow()
    if settings.data_dir is None:
        raise DataError("folder needs data_dir, a folder with train/<class>/ and val/<class>/ inside")
    options = {"size": 224, "workers": 0, **settings.data_options}
    if unknown := options.keys() - {"size", "workers"}:
        raise ConfigError(f"data_options has {sorted(unknown)[0]!r}: a folder of images takes size and workers")
    root = Path(settings.data_dir)
    if not root.is_dir():
        raise DataError(f"there is no folder {root}")
    classes = _classes(root / "train")
    train = _files(root / "train", classes)
    random.Random(settings.seed).shuffle(train)
    test = _files(root / "val", classes)
    if len(train) < 2:
        raise DataError(f"{root / 'train'} holds one image: there must be some to train on and some to validate on")
    count = max(1, len(train) // VALIDATION_SHARE)
    held_out, train = train[:count], train[count:]

    def images(files: list[tuple[Path, int]], augmented: bool = False) -> FolderImages:
        return FolderImages(tuple(files), options["size"], augmented, settings.scale == "standardise")

    augmented = settings.augment != "none"
    return SampleData(images(train, augmented), images(train), images(held_out), images(test), options["workers"])


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


def _files(folder: Path, classes: list[str]) -> list[tuple[Path, int]]:
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise DataError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}) in folders like {classes[0]!r}")
    return found


def _middle(size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The middle 7/8 of the largest square."""
    width, height = size
    side = min(size) * 7 / 8
    return ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)


def _random_part(size: tuple[int, int]) -> tuple[float, float, float, float]:
    """A random rectangle of 8% to 100% of the area, its sides within 3:4 and 4:3."""
    width, height = size
    for _ in range(10):
        area, ratio = random.uniform(0.08, 1) * width * height, 2 ** random.uniform(-0.415, 0.415)
        across, down = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        if across <= width and down <= height:
            left, top = random.uniform(0, width - across), random.uniform(0, height - down)
            return (left, top, left + across, top + down)
    return _middle(size)
