"""Whole runs of a wide dense network: each has the size that it is compared at, and the page shows the results."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"


def test_the_page_shows_the_results() -> None:
    import wide_dense

    records = json.loads((wide_dense.RESULTS / "wide_dense.json").read_text())["records"]
    assert wide_dense.table(records) in PAGE.read_text()


def test_every_run_is_there_once_at_the_rate_of_the_grid_and_meets_its_size() -> None:
    import wide_dense

    records = json.loads((wide_dense.RESULTS / "wide_dense.json").read_text())["records"]
    final = wide_dense.finals(records)
    assert len(final) == len({(record["network"], record["seed"]) for record in final}) == 5 * len(wide_dense.NETWORKS)
    share = wide_dense.SHARE * wide_dense.parameters(wide_dense.WIDTH)
    for record in final:
        if record["network"] in (wide_dense.PCN, wide_dense.NARROW):
            assert 0.98 * share < record["trainable_params"] <= share
        if record["network"] == wide_dense.AS_STORED:
            (pcn,) = (r for r in final if (r["network"], r["seed"]) == (wide_dense.PCN, record["seed"]))
            assert 0.98 * pcn["total_params"] < record["total_params"] <= pcn["total_params"]


def test_the_grid_comes_first_and_what_is_there_is_not_run_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wide_dense
    from records import Records

    monkeypatch.setattr(wide_dense, "WIDTH", 24)
    monkeypatch.setattr(wide_dense, "EPOCHS", 3)
    whole = wide_dense.job

    def short(*arguments: object, **keywords: object) -> object:
        job = whole(*arguments, **keywords)
        return replace(job, settings=replace(job.settings, batch=6))

    monkeypatch.setattr(wide_dense, "job", short)
    records = Records(tmp_path / "wide_dense.json")
    options = argparse.Namespace(data=folder, time_limit=float("inf"), together=1, shared=False)
    wide_dense.do(records, [0], options)
    seeds = [record["seed"] for record in records.records]
    assert seeds == [wide_dense.GRID_SEED] * 12 + [0] * 4
    assert [record["test_accuracy"] is None for record in records.records] == [True] * 12 + [False] * 4
    assert all(record["seconds"] > 0 for record in records.records)
    wide_dense.do(records, [0], options)
    assert len(records.records) == 16
    pcn, narrow, as_stored = records.records[-3:]
    assert pcn["trainable_params"] <= pcn["total_params"]
    assert narrow["total_params"] <= as_stored["total_params"] <= pcn["total_params"]
    assert wide_dense.table(records.records).count("\n") == 1 + len(wide_dense.NETWORKS)
