"""The runs that are compared fork from the very same parent, and what is fused trains as the others do."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pcn.fusion.switch import everywhere
from pcn.training import Settings


@pytest.mark.slow
def test_stock_runs_are_equal_and_the_fused_one_is_near(
    tiny_parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fused_training
    from peers.parents import PARENTS

    def tiny(network: str, seed: int, epochs: int, data: Any) -> Settings:
        recipe = PARENTS[tiny_parent].recipe(seed, epochs, data)
        return replace(recipe, rank="0.5", switch_at="1", model_options={"width": 8})

    file = tmp_path / "fused_training.json"
    arguments = ["--data", str(tmp_path), "--epochs", "3", "--device", "cpu", "--results", str(file)]
    monkeypatch.setattr(fused_training, "settings", tiny)
    monkeypatch.setattr(sys, "argv", ["fused_training.py", *arguments])
    with everywhere():
        fused_training.main()
    records = {record["run"]: record["epochs"] for record in json.loads(file.read_text())["records"]}
    stock, fused, another = ([epoch["loss"] for epoch in records[run]] for run in fused_training.RUNS)
    assert len(stock) == 2
    assert another == stock  # here none is compiled
    assert fused == pytest.approx(stock, rel=1e-2)
    assert len(fused_training.table(file).splitlines()) == 4
    with pytest.raises(SystemExit, match="move it away first"):
        fused_training.main()


def test_the_page_shows_what_is_recorded() -> None:
    import fused_training

    page = (Path(fused_training.__file__).parents[1] / "docs" / "performance.md").read_text()
    assert fused_training.table() in page
