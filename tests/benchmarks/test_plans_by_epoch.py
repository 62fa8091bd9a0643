"""Plans for one network as it trains."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def test_a_network_is_planned_as_it_trains_and_trains_on(
    tiny_parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import plans_by_epoch as script
    from records import Records

    out = tmp_path / "found.json"
    for name, value in {"PARENT": "tiny", "TARGET": 120_000, "LOOKS": (20, 60), "TUNED": {}}.items():
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(sys, "argv", ["plans_by_epoch.py", "--data", "none", "--epochs", "3", "--out", str(out)])
    script.main()
    records = Records(out).records
    assert [(each["seed"], each["epoch"]) for each in records] == [(0, 1), (0, 3), (1, 1), (1, 3)]
    assert all(0 < rank <= each["widths"][name] for each in records for name, rank in each["ranks"].items())
    script.main()  # nothing is left to do
    assert Records(out).records == records
    monkeypatch.setattr(sys, "argv", ["plans_by_epoch.py", "--table", "--out", str(out)])
    monkeypatch.setattr(script, "STAGES", ("",))
    script.main()
    assert "| 3 | 2 |" in capsys.readouterr().out


def test_the_documentation_shows_what_was_planned() -> None:
    import plans_by_epoch as script
    from records import Records

    page = (Path(__file__).parents[2] / "docs" / "trials.md").read_text()
    assert script.table(Records(script.RESULT).records) in page
