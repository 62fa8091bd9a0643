"""Which device is trained on: the one that is asked for, or the GPU; never the CPU because a GPU is out of order."""

from __future__ import annotations

import warnings

import pytest
import torch

from pcn.errors import ConfigError
from pcn.training.world import device_named


def test_a_gpu_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        warnings.warn("Unexpected error from cudaGetDeviceCount(). Error 805", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", broken)
    with pytest.raises(ConfigError, match=r"CUDA does not start: .*805.*--device cpu"):
        device_named(None)
    assert device_named("cpu") == torch.device("cpu")


def test_without_a_gpu_the_cpu_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_named(None) == torch.device("cpu")
    with pytest.raises(ConfigError, match="finds no CUDA device"):
        device_named("cuda")
