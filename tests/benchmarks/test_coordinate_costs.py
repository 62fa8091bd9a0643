"""What a step costs in all coordinates: every way is timed once, and what is there is not timed again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def test_every_network_is_timed_in_every_way_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import coordinates
    import small_llama

    for name, value in {"HIDDEN": 32, "INNER": 64, "HEADS": 2}.items():
        monkeypatch.setattr(small_llama, name, value)
    out = tmp_path / "coordinates.json"
    monkeypatch.setattr(sys, "argv", ["coordinates.py", "--batches", "1", "--turns", "1", "--results", str(out)])
    coordinates.main()
    records = json.loads(out.read_text())["records"]
    assert [record["network"] for record in records] == list(coordinates.shapes())
    assert all(record[f"{way}_ms"] > 0 for record in records for way in coordinates.WAYS)
    layers = 7 * small_llama.LAYERS + 1
    assert all(sum(record["forms"].values()) == layers for record in records)
    assert capsys.readouterr().out.count("(") == 3 * len(records)  # each beside the network as it was
    coordinates.main()
    assert json.loads(out.read_text())["records"] == records
