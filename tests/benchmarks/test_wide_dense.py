"""Whole runs of a wide dense network: each has the size that it is compared at, and the page shows the results."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from random_files import write_cifar10


def test_every_run_is_there_once_at_the_rate_of_the_grid_and_meets_its_size() -> None:
    import wide_dense

    records = json.loads((wide_dense.RESULTS / "wide_dense.json").read_text())["records"]
    final = wide_dense.finals(records)
    assert len(final) == len({(record["network"], record["seed"]) for record in final}) == 5 * len(wide_dense.NETWORKS)
    grid = [(r["network"], r["learning_rate"]) for r in records if r["seed"] == wide_dense.GRID_SEED]
    assert sorted(grid) == sorted(product([*wide_dense.NETWORKS, wide_dense.ROTATED], wide_dense.RATES))
    share = wide_dense.SHARE * wide_dense.parameters(wide_dense.WIDTH)
    for record in final:
        if record["network"] in wide_dense.AS_STORED:
            (pcn,) = (r for r in final if (r["network"], r["seed"]) == (wide_dense.PCN, record["seed"]))
            assert 0.98 * pcn["total_params"] < record["total_params"] <= pcn["total_params"]
        elif record["network"] == wide_dense.NARROW_ROTATED:
            (plain,) = (r for r in final if (r["network"], r["seed"]) == (wide_dense.NARROW, record["seed"]))
            assert record["trainable_params"] == plain["trainable_params"]
        elif record["network"] == wide_dense.HALF:  # whose layers would get larger by more
            assert 0.9 * share < record["trainable_params"] <= share
        elif record["network"] != wide_dense.PARENT:
            assert 0.98 * share < record["trainable_params"] <= share


def test_the_grid_comes_first_and_what_is_there_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wide_dense
    from records import Records

    monkeypatch.setattr(wide_dense, "WIDTH", 24)
    monkeypatch.setattr(wide_dense, "EPOCHS", 3)
    monkeypatch.setattr(wide_dense, "RATES", (1e-3, 3e-3))
    whole = wide_dense.job

    def short(*arguments: object, **keywords: object) -> object:
        job = whole(*arguments, **keywords)
        return replace(job, settings=replace(job.settings, batch=6))

    monkeypatch.setattr(wide_dense, "job", short)
    records = Records(tmp_path / "wide_dense.json")
    options = argparse.Namespace(
        data=write_cifar10(tmp_path / "data"), time_limit=float("inf"), together=1, shared=False
    )
    wide_dense.do(records, [0], options)
    rates, networks = len(wide_dense.RATES), len(wide_dense.NETWORKS)
    grid, alone = networks * rates, rates  # the wide network in its coordinates
    seeds = [record["seed"] for record in records.records]
    assert seeds == [wide_dense.GRID_SEED] * grid + [0] * networks + [wide_dense.GRID_SEED] * alone
    assert [record["test_accuracy"] is None for record in records.records] == [seed != 0 for seed in seeds]
    assert all(record["seconds"] > 0 for record in records.records)
    wide_dense.do(records, [0], options)
    assert len(records.records) == grid + networks + alone
    final = {record["network"]: record for record in wide_dense.finals(records.records)}
    pcn = final[wide_dense.PCN]
    assert pcn["trainable_params"] < pcn["total_params"]
    assert final[wide_dense.NARROW]["total_params"] < final[wide_dense.NARROW_STORED]["total_params"]
    assert all(final[name]["total_params"] <= pcn["total_params"] for name in wide_dense.AS_STORED)
    assert final[wide_dense.AT_ONCE]["switch_epoch"] == 0
    assert final[wide_dense.LOW_RANK]["switch_epoch"] == 1
    assert wide_dense.table(records.records).count("\n") == 1 + networks


def test_times_of_runs_beside_other_work_are_not_kept() -> None:
    import wide_dense

    curve = [{"epoch": epoch, "train_seconds": 2.0 * epoch} for epoch in (1, 2, 3)]
    times = {"train_seconds": 6.0, "setup_seconds": 0.5, "switch_seconds": None}
    record = {**dict.fromkeys(wide_dense.KEPT), "seed": 0, "curve": curve, **times}
    alone = wide_dense.kept(record)
    beside = wide_dense.kept({**record, "train_seconds": None})
    assert (alone["seconds"], alone["epoch_seconds"]) == (6.5, 2.0)
    assert (beside["seconds"], beside["epoch_seconds"]) == (None, None)
