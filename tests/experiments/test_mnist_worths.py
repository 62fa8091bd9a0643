"""Budgets of a dense network, tight and loose: arms have the size that they are compared at, and the page shows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest


@pytest.mark.parametrize("there", [0, 1, 4, 6, 20])
def test_a_table_of_a_part(there: int) -> None:
    """Differences from networks that have not run yet are left out."""
    import mnist_worths

    records = json.loads((mnist_worths.RESULTS / "mnist_worths.json").read_text())["records"][:there]
    rows = mnist_worths.table(records).splitlines()[2:]
    assert len(rows) == len({record["network"] for record in records})


def test_every_run_is_there_once_and_meets_its_size() -> None:
    import mnist_worths

    records = json.loads((mnist_worths.RESULTS / "mnist_worths.json").read_text())["records"]
    keys = [(record["network"], record["seed"]) for record in records]
    assert len(keys) == len({*keys}) == 3 * (1 + len([*mnist_worths.ARMS, "narrow"]) * len(mnist_worths.SHARES))
    whole = mnist_worths.parameters(mnist_worths.WIDTH)
    for record in records:
        share = record["network"].rpartition(" ")[2]
        limit = whole if share == "parent" else float(share) * whole
        assert 0.9 * limit < record["trainable_params"] <= limit  # steps of eight leave something


@pytest.mark.parametrize("arm", ["hedged 0.1", "narrow 0.05"])
def test_an_arm_trains(mnist: Path, arm: str) -> None:
    import mnist_worths
    from runs import run

    job = next(job for job in mnist_worths.jobs(0, mnist) if job.network == arm)
    record = run(replace(job, settings=replace(job.settings, epochs=2, batch=4)))
    assert record is not None
    assert list(record) == list(mnist_worths.KEPT)
    assert record["trainable_params"] <= float(arm.split()[1]) * mnist_worths.parameters(mnist_worths.WIDTH)
