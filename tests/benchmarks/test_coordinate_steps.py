"""What a step costs in all coordinates: every way is timed once, and what is there is not timed again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def test_every_network_is_timed_in_every_way_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import coordinate_steps
    import small_llama

    for name, value in {"HIDDEN": 32, "INNER": 64, "HEADS": 2}.items():
        monkeypatch.setattr(small_llama, name, value)
    out = tmp_path / "coordinate_steps.json"
    monkeypatch.setattr(sys, "argv", ["coordinate_steps.py", "--batches", "1", "--turns", "1", "--results", str(out)])
    coordinate_steps.main()
    records = json.loads(out.read_text())["records"]
    assert [record["network"] for record in records] == list(coordinate_steps.shapes())
    assert all(record[f"{way}_ms"] > 0 for record in records for way in coordinate_steps.WAYS)
    layers = 7 * small_llama.LAYERS + 1
    assert all(sum(record["forms"].values()) == layers for record in records)
    assert capsys.readouterr().out.count("(") == 3 * len(records)  # each beside the network as it was
    coordinate_steps.main()
    assert json.loads(out.read_text())["records"] == records
