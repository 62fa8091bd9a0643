"""Convolutions are timed by their numbers of channels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "conv_channels.py"


def test_the_documentation_shows_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import conv_channels

    assert conv_channels.table() in (SCRIPT.parents[1] / "docs" / "performance.md").read_text()


def test_every_size_is_timed(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    subprocess.run([sys.executable, SCRIPT, "--device", "cpu", "--batch", "1", "--out", out], check=True)
    records = json.loads(out.read_text())["records"]
    assert {(record["channels"], record["filters"]) for record in records} >= {(64, 64), (40, 56), (128, 128)}
    assert all(record[part] > 0 for record in records for part in ("forward_us", "input_us", "weight_us"))
