"""Time and energy are those of whole epochs after the switch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest


def test_an_epochs_cost_is_that_of_the_epochs_that_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time_and_energy
    from runs import Job, run

    monkeypatch.setattr(time_and_energy, "IDLE_S", 0.01)
    settings = time_and_energy.short_settings("wide_resnet20-pcn2", 2, folder)
    assert (settings.epochs, settings.switch_at, settings.learning_rate) == (4, "1", 0.1)
    job = Job("wide_resnet20-pcn2", dataclasses.replace(settings, batch=6), each_epoch=time_and_energy.spent)
    whole = run(job)
    record = time_and_energy.per_epoch(whole)
    assert record["epochs_measured"] == 2
    curve = whole["curve"]
    assert record["epoch_seconds"] == pytest.approx((curve[3]["train_seconds"] - curve[1]["train_seconds"]) / 2)
    assert record["setup_again_seconds"] > 0
    assert record["switch_seconds"] > 0
    assert record["epoch_energy_j"] is None  # a CPU has no counter
    assert "test_accuracy" not in record


def test_ratios_stand_beside_the_papers() -> None:
    import table_costs

    def record(network: str, seconds: float, energy_j: float, **more: float | None) -> dict[str, object]:
        costs = {"switch_seconds": None, "setup_seconds": 20.0, "setup_again_seconds": 0.0, **more}
        known = {"trainable_params": 1, "epoch_seconds": seconds, "epoch_energy_j": energy_j, "idle_w": 100.0}
        return {"network": network, **known, **costs}

    records = [
        record("wide_resnet20", 1.0, 500.0),
        record("wide_resnet20-pcn1", 0.8, 400.0, switch_seconds=4.0, setup_again_seconds=20.0),
        record("resnet110", 2.0, 600.0),
    ]
    head, rows = table_costs.ratios(records)
    assert head[1:] == ["paper", "here"]
    assert ["energy per epoch, against WideResNet-20", "-16%", "-20%"] in rows
    assert ["energy per epoch, against ResNet-110", "-28%", "-33%"] in rows
    assert ["time per epoch, against ResNet-110", "49% faster", "-60%"] in rows
    assert ["the switch, in epochs of WideResNet-20", "0.18 (3 s of 17 s)", "4.0"] in rows
    assert ["and setting the step up again", "", "24.0"] in rows
    _, costs = table_costs.costs(records)
    assert costs[0] == ["wide_resnet20", "1.00", "500", "400", "", "20.00", ""]
    assert costs[-1][0] == "idle GPU: 100 to 100 W"
