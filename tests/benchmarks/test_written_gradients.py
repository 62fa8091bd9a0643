"""A gradient is timed multiplied once and twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "written_gradients.py"


def test_every_size_is_timed_in_both_ways(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    subprocess.run([sys.executable, SCRIPT, "--device", "cpu", "--rows", "2", "--out", out], check=True)
    records = json.loads(out.read_text())["records"]
    assert {record["rank"] for record in records} == {64, 128, 256, 512}
    assert all(record[way] > 0 for record in records for way in ("written_us", "twice_us"))
