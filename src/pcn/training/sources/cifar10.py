"""CIFAR-10: the official binary batches, or the Python ones that torchvision downloads."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from pcn.errors import DataError
from pcn.training.data import ImageData, split_off
from pcn.training.images import Images, Scale, augmentation
from pcn.training.settings import Settings
from pcn.training.sources.archives import find_files

SOURCE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
SIDE = 32
PLANES = 3 * SIDE * SIDE  # the red, green and blue planes of an image, after its label
ALLOWED = {"_reconstruct", "ndarray", "dtype", "encode"}  # what a pickled array of numbers is made from


def load(settings: Settings) -> ImageData:
    """Read CIFAR-10; a random tenth of the training images is split off for validation."""
    everything, test = read(settings.data_dir)
    train, held_out = split_off(everything, len(everything) // 10, settings.seed)
    scale = Scale.named(settings.scale, train)
    return ImageData(train, held_out, test, scale, augmentation(settings.augment))


def read(folder: str | None) -> tuple[Images, Images]:
    """Read the training and test images in whichever form they are there."""
    python = None if folder is None else Path(folder) / "cifar-10-batches-py"
    if python is not None and all((python / name).is_file() for name in TRAIN + TEST):
        return _read_python(python, TRAIN), _read_python(python, TEST)
    names = [f"{name}.bin" for name in TRAIN + TEST]
    found = find_files(folder, "CIFAR-10's binary version", names, ("cifar-10-batches-bin",), SOURCE)
    return _read_binary(found, TRAIN), _read_binary(found, TEST)


def _read_binary(folder: Path, names: tuple[str, ...]) -> Images:
    """Records of a label and three colour planes."""
    data = bytearray(b"".join((folder / f"{name}.bin").read_bytes() for name in names))
    if not data or len(data) % (1 + PLANES):
        raise DataError(f"the batches in {folder} are cut off: get {SOURCE} again")
    records = torch.frombuffer(data, dtype=torch.uint8).reshape(-1, 1 + PLANES)
    return _images(records[:, 1:], records[:, 0].long())


def _read_python(folder: Path, names: tuple[str, ...]) -> Images:
    batches = [_unpickled(folder / name) for name in names]
    planes = torch.cat([torch.from_numpy(batch[b"data"]) for batch in batches])
    return _images(planes, torch.tensor([label for batch in batches for label in batch[b"labels"]]))


def _images(planes: torch.Tensor, labels: torch.Tensor) -> Images:
    return Images(planes.reshape(-1, 3, SIDE, SIDE).permute(0, 2, 3, 1).contiguous(), labels)


class _NumbersOnly(pickle.Unpickler):
    """Reads arrays of numbers and refuses everything else: a pickle can name any code to run."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in ALLOWED or module.split(".")[0] not in {"numpy", "_codecs"}:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _unpickled(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _NumbersOnly(file, encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"{path} is not one of CIFAR-10's batches: {error}; get the archive again") from error
