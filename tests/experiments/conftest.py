"""What the tests of the experiments share: the scripts can be imported, CIFAR-10 and MNIST of a few random images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from random_files import write_cifar10

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """CIFAR-10 in its binary form, of four random images a file: 18 to train on, 2 to validate on, 4 to test on."""
    return write_cifar10(tmp_path / "data")


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """MNIST as its four files, of random images: 63 to train on, 7 to validate on, 6 to test on."""
    torch.manual_seed(0)
    for name, size in (("train", 70), ("t10k", 6)):
        pixels, labels = torch.randint(256, (size, 28, 28), dtype=torch.uint8), torch.randint(10, (size,))
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + b"".join(side.to_bytes(4) for side in values.shape)
            (tmp_path / f"{name}-{kind}-ubyte").write_bytes(head + bytes(values.flatten().tolist()))
    return tmp_path
