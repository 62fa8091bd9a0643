"""The benchmark of the analysis runs, and says what it measured on what."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "analysis.py"


@pytest.mark.slow
def test_every_part_writes_its_results(tmp_path):
    out = tmp_path / "analysis.json"
    command = [sys.executable, str(SCRIPT), "--tiny", "--device", "cpu", "--threads", "1", "--out", str(out)]
    for parts in (["collection", "leading"], ["streaming", "conversion"]):
        subprocess.run([*command, "--only", *parts], check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert set(found) == {"collection", "leading", "streaming", "conversion"}
    for part in found.values():
        assert {"device", "precision", "threads", "torch"} <= part["cpu"].keys()
    leading, streaming = found["leading"]["cpu"], found["streaming"]["cpu"]
    assert leading["count"] == leading["count_scikit_learn"]
    assert streaming["variance_held_relative_to_the_best_basis"] > 0.99
