"""MNIST: the four official files, zipped or not."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import torch
from torch import Tensor

from pcn.errors import DataError
from pcn.training.data import ImageData, split_off
from pcn.training.images import Images, Scale, augmentation
from pcn.training.settings import Settings

SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
INSIDE = ("", "mnist", "raw", "MNIST/raw")  # where the files, torchvision's too, stand under the folder given
VALIDATION = 5000


def load(settings: Settings) -> ImageData:
    """Read MNIST; 5,000 random training images are split off for validation."""
    folder = _find(settings.data_dir)
    train, test = (_read_images(folder, *FILES[start : start + 2]) for start in (0, 2))
    train, held_out = split_off(train, min(VALIDATION, len(train) // 10), settings.seed)
    scale = Scale.named(settings.scale, train)
    return ImageData(train, held_out, test, scale, augmentation(settings.augment))


def _find(folder: str | None) -> Path:
    if folder is None:
        raise DataError(f"mnist needs data_dir (--data-dir), the folder of its four files; get them from {SOURCE}")
    for inside in INSIDE:
        candidate = Path(folder) / inside
        if all(_file(candidate, name) for name in FILES):
            return candidate
    raise DataError(f"{folder} does not hold MNIST ({FILES[0]}.gz and three more): get them from {SOURCE}")


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read_images(folder: Path, images: str, labels: str) -> Images:
    pixels = _read(folder, images)
    return Images(pixels.unsqueeze(-1), _read(folder, labels).long())


def _read(folder: Path, name: str) -> Tensor:
    """Read an IDX file of bytes: two zero bytes, the type, the number of dimensions, their sizes, the numbers."""
    path = _file(folder, name)
    assert path is not None
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        _, _, kind, dimensions = struct.unpack_from(">4B", data)
        shape = struct.unpack_from(f">{dimensions}I", data, 4)
        if kind != 8:
            raise ValueError(f"type {kind}, not bytes")
        return torch.frombuffer(bytearray(data[4 + 4 * dimensions :]), dtype=torch.uint8).reshape(shape)
    except (OSError, EOFError, struct.error, ValueError, RuntimeError) as error:
        raise DataError(f"{path} is damaged ({error}): get it again from {SOURCE}") from error
