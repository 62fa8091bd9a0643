"""Fused code runs here without kernels too, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pcn.fusion.switch import everywhere


@pytest.fixture(autouse=True)
def _everywhere() -> Iterator[None]:
    with everywhere():
        yield
