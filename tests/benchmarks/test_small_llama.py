"""A small Llama on bytes: each network has the size that it is compared at, and the page shows the results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch


def test_every_run_is_there_once_at_the_best_rate_of_the_grid_and_meets_its_size() -> None:
    import small_llama

    records = json.loads((small_llama.RESULTS / "small_llama.json").read_text())["records"]
    networks = small_llama.NETWORKS
    grid = [(name, small_llama.GRID_SEED, rate) for name in networks for rate in small_llama.rates_of(name)]
    seeds = [(name, seed, small_llama.best(records, name)) for name in networks for seed in range(3)]
    found = [(record["network"], record["seed"], record["learning_rate"]) for record in records]
    assert sorted(found) == sorted(grid + seeds)
    whole = small_llama.parameters(small_llama.HIDDEN, small_llama.INNER)
    for record in records:
        name, stored = record["network"], record["total_params"]
        if name in small_llama.AS_STORED:
            assert 0.98 * small_llama.stored(records) < stored <= small_llama.stored(records)
            continue
        wide = [small_llama.PARENT, small_llama.ROTATED, small_llama.UNCENTRED[small_llama.ROTATED]]
        wide.append(small_llama.BY_MUON[small_llama.PARENT])
        asked = whole if name in wide else small_llama.SHARE * whole
        biased = small_llama.ROTATED, small_llama.NARROW_ROTATED, small_llama.BIASED
        biases = 0.02 * asked if name in biased else 0
        assert 0.98 * asked < record["trainable_params"] <= asked + biases  # which rewritten layers get


@pytest.mark.parametrize(("hidden", "inner"), [(192, 512), (8, 20), (120, 321)])
def test_the_count_is_that_of_the_network(hidden: int, inner: int) -> None:
    import small_llama

    model = small_llama.llama(hidden, inner)
    assert small_llama.parameters(hidden, inner) == sum(each.numel() for each in model.parameters())


def test_the_grid_comes_first_and_what_is_there_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import small_llama
    import texts
    from records import Records

    for name, value in {"HIDDEN": 64, "INNER": 256, "CALIBRATION": 4, "TRAINED": 2_000, "HELD_OUT": 500}.items():
        monkeypatch.setattr(small_llama, name, value)
    monkeypatch.setattr(
        small_llama, "llama", lambda hidden=64, inner=256, *, make=small_llama.llama, **how: make(hidden, inner, **how)
    )
    for name in ("RATES", "MUONS_RATES"):
        monkeypatch.setattr(small_llama, name, (3e-3,))
    monkeypatch.setattr(small_llama, "TEXT", 3_000)
    monkeypatch.setattr(texts, "STEPS", 6)
    monkeypatch.setattr(texts, "SWITCH", 3)
    text = tmp_path / "text"
    text.write_bytes(bytes(torch.randint(256, (3_000,), generator=torch.Generator().manual_seed(0)).tolist()))
    records = Records(tmp_path / "small_llama.json")
    options = argparse.Namespace(text=text, together=1)
    small_llama.do(records, [0], options)
    networks = len(small_llama.NETWORKS)
    seeds = [record["seed"] for record in records.records]
    assert seeds == [small_llama.GRID_SEED] * networks + [0] * networks
    assert [record["test_loss"] is None for record in records.records] == [seed != 0 for seed in seeds]
    small_llama.do(records, [0], options)
    assert len(records.records) == 2 * networks
    final = {record["network"]: record for record in records.records if record["seed"] == 0}
    whole, pcn = final[small_llama.PARENT]["trainable_params"], final[small_llama.PCN]
    assert pcn["trainable_params"] <= small_llama.SHARE * whole
    assert pcn["trainable_params"] < pcn["total_params"]
    assert whole < final[small_llama.ROTATED]["trainable_params"] < final[small_llama.ROTATED]["total_params"]
    assert final[small_llama.LOW_RANK]["trainable_params"] <= small_llama.SHARE * whole
    assert all(final[name]["total_params"] <= small_llama.stored(records.records) for name in small_llama.AS_STORED)
    assert small_llama.table(records.records).count("\n") == 1 + networks
