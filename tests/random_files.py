"""Data sets of random numbers, in the files that everyone has."""

from __future__ import annotations

from pathlib import Path

import torch


def write_cifar10(folder: Path) -> Path:
    """CIFAR-10 in its binary form, of four images a file: 18 to train on, 2 to validate on, 4 to test on."""
    target = folder / "cifar-10-batches-bin"
    target.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        labels = torch.randint(10, (4, 1), dtype=torch.uint8)
        pixels = torch.randint(256, (4, 3072), dtype=torch.uint8)
        (target / f"{name}.bin").write_bytes(bytes(torch.cat([labels, pixels], 1).flatten().tolist()))
    return folder
