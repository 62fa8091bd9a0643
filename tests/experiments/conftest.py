"""What the tests of the experiments share: the scripts can be imported, and CIFAR-10 of a few random images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """CIFAR-10 in its binary form, of four random images a file: 18 to train on, 2 to validate on, 4 to test on."""
    target = tmp_path / "data" / "cifar-10-batches-bin"
    target.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        labels = torch.randint(10, (4, 1), dtype=torch.uint8)
        pixels = torch.randint(256, (4, 3072), dtype=torch.uint8)
        (target / f"{name}.bin").write_bytes(bytes(torch.cat([labels, pixels], 1).flatten().tolist()))
    return target.parent
