"""Coordinates that are sized for Adam: the page shows what was measured, and both tasks train."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch


def test_every_run_is_there_once_and_both_sizes_train_as_many_parameters() -> None:
    import sized_for_adam as each

    records = json.loads((each.RESULTS / "sized_for_adam.json").read_text())["records"]
    found = [tuple(r[name] for name in ("network", "learning_rate", "share", "seed")) for r in records]
    tasks = ("digits", each.RATES, each.SHARES, range(5)), ("text", each.TEXT_RATES, each.TEXT_SHARES, range(3))
    expected = [
        (f"{task}, {stepper}", rate, share, seed)
        for task, rates, shares, seeds in tasks
        for (stepper, rate, share), seed in product(each.arms(rates, shares), seeds)
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)
    sizes = {key: record["trainable_params"] for key, record in zip(found, records, strict=True)}
    for (network, rate, share, seed), size in sizes.items():
        whole = sizes[f"{network.split(',')[0]}, parent", rate, None, seed]
        assert (share or 1) * 0.9 * whole < size <= (share or 1) * whole


@pytest.mark.parametrize("stepper", ["parent", "sgd", "adam"])
def test_digits_train(stepper: str) -> None:
    from dataclasses import replace

    import sized_for_adam
    from runs import run

    job = sized_for_adam.digits((stepper, 1e-3, None if stepper == "parent" else 0.25), 0)
    record = run(replace(job, settings=replace(job.settings, epochs=4)))
    assert record is not None
    assert list(record) == list(sized_for_adam.KEPT)


def test_the_language_model_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sized_for_adam
    import texts

    monkeypatch.setattr(texts, "STEPS", 6)
    monkeypatch.setattr(texts, "SWITCH", 2)
    monkeypatch.setattr(sized_for_adam, "TRAINED", 2_000)
    file = tmp_path / "text"
    file.write_bytes(b"the quick brown fox jumps over the lazy dog; " * 60)
    data = texts.read_bytes(file, 2_500)
    wide, small = (sized_for_adam.text((*arm,), 0, data) for arm in (("parent", 1e-3, None), ("adam", 1e-3, 0.4)))
    assert small["trainable_params"] <= 0.4 * wide["trainable_params"]
    assert torch.isfinite(torch.tensor([wide["validation_loss"], small["validation_loss"]])).all()
    file.write_bytes(b"short")
    with pytest.raises(SystemExit, match="give a text of at least 2,500"):
        texts.read_bytes(file, 2_500)


def test_a_table_of_a_part_has_what_is_there() -> None:
    import sized_for_adam

    records = json.loads((sized_for_adam.RESULTS / "sized_for_adam.json").read_text())["records"]
    digits = [record for record in records if record["network"].startswith("digits")]
    assert sized_for_adam.table(digits).count("\n") == 1 + 6
    assert sized_for_adam.table([]).count("\n") == 1
