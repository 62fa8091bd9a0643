"""The CIFAR-10 experiments run to the end on a few generated images, resume exactly and keep their records."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pcn.cost import count

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """CIFAR-10 in its binary form, of four random images a file: 18 to train on, 2 to validate on, 4 to test on."""
    target = tmp_path / "data" / "cifar-10-batches-bin"
    target.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        labels = torch.randint(10, (4, 1), dtype=torch.uint8)
        pixels = torch.randint(256, (4, 3072), dtype=torch.uint8)
        (target / f"{name}.bin").write_bytes(bytes(torch.cat([labels, pixels], 1).flatten().tolist()))
    return target.parent


@pytest.fixture
def resnets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import cifar10_resnets

    monkeypatch.setattr(cifar10_resnets, "BATCH", 4)
    return cifar10_resnets


def resnet_job(resnets: ModuleType, folder: Path, work: str, network: str = "resnet20", epochs: int = 3) -> object:
    return resnets.Job(
        network=network,
        seed=0,
        epochs=epochs,
        data=folder,
        work=folder.parent / work,
        checkpoint_every=1,
        carry_state=False,
        shared=False,
        compiled=False,
        deadline=math.inf,
    )


def test_missing_data_says_where_to_get_it(tmp_path: Path) -> None:
    import cifar

    with pytest.raises(SystemExit, match=r"cifar-10-binary\.tar\.gz"):
        cifar.find(tmp_path)


def test_crops_are_parts_of_the_padded_image_or_of_its_mirror_image() -> None:
    import cifar

    pixels = torch.randint(1, 256, (20, 32, 32, 3), dtype=torch.uint8)
    crops = cifar.cropped_and_flipped(pixels, torch.Generator().manual_seed(0))
    mirrored = 0
    for image, crop in zip(pixels, crops, strict=True):
        found = {
            flip: any(torch.equal(window, crop.flip(1) if flip else crop) for window in windows(image))
            for flip in (False, True)
        }
        assert any(found.values())
        mirrored += found[True]
    assert 0 < mirrored < len(pixels)


def windows(image: torch.Tensor) -> Iterator[torch.Tensor]:
    padded = torch.zeros(40, 40, 3, dtype=torch.uint8)
    padded[4:36, 4:36] = image
    return (padded[y : y + 32, x : x + 32] for y in range(9) for x in range(9))


def test_every_channel_is_standardised_over_the_training_split(folder: Path) -> None:
    import cifar

    data = cifar.load(folder, seed=0, standardise=True, device=CPU)
    images = data.scale(data.train.pixels)
    assert len(data.train) == 18
    assert len(data.validation) == 2
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(images.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4)


def test_an_epoch_depends_on_its_seed_alone(folder: Path) -> None:
    import cifar

    data = cifar.load(folder, seed=0, standardise=True, device=CPU)
    first, again, other = (list(data.epoch(4, seed, augment=True, dtype=torch.float32)) for seed in (1, 1, 2))
    assert len(first) == 4
    assert all(torch.equal(a, b) for pair in zip(first, again, strict=True) for a, b in zip(*pair, strict=True))
    assert not torch.equal(first[0][0], other[0][0])


def test_the_schedule_is_the_papers_and_scales(resnets: ModuleType, folder: Path) -> None:
    job = resnet_job(resnets, folder, "work", "wide_resnet20-pcn1", epochs=182)
    rates = {epoch: round(job.learning_rate(epoch), 6) for epoch in (1, 91, 92, 136, 137, 182)}
    assert rates == {1: 0.1, 91: 0.1, 92: 0.01, 136: 0.01, 137: 0.001, 182: 0.001}
    assert job.switch_epoch == 15
    short = dataclasses.replace(job, epochs=60)
    assert short.switch_epoch == 5
    assert [round(short.learning_rate(epoch), 6) for epoch in (30, 31, 45, 46)] == [0.1, 0.01, 0.01, 0.001]
    assert count(resnets.build("wide_resnet20-half")).trainable == 1_085_674


def test_a_run_that_was_stopped_ends_like_one_that_was_not(resnets: ModuleType, folder: Path) -> None:
    whole = resnets.Run(resnet_job(resnets, folder, "whole"))
    whole_record = whole.to_the_end()

    stopped = resnets.Run(resnet_job(resnets, folder, "stopped"))
    stopped.set_up()
    stopped.train_epoch()
    stopped.save(stopped.job.checkpoint)
    resumed = resnets.Run(stopped.job)
    assert resumed.progress.epoch == 1
    resumed_record = resumed.to_the_end()

    expected = whole.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.model.state_dict().items())
    assert resumed_record["test_accuracy"] == whole_record["test_accuracy"]


def test_out_of_time_leaves_a_checkpoint(resnets: ModuleType, folder: Path) -> None:
    job = dataclasses.replace(resnet_job(resnets, folder, "late"), deadline=0.0)
    assert resnets.run(job) is None
    assert resnets.Run(job).to_the_end() is None
    assert job.checkpoint.exists()


@pytest.mark.parametrize("carry_state", [False, True])
def test_a_pcn_branches_off_its_parents_first_epochs(resnets: ModuleType, folder: Path, carry_state: bool) -> None:
    parent = resnets.Run(resnet_job(resnets, folder, "work", "wide_resnet20", epochs=2))
    parent.set_up()
    parent.train_epoch()
    parent.save(parent.job.trunk)
    job = dataclasses.replace(parent.job, network="wide_resnet20-pcn2", carry_state=carry_state)
    assert resnets.ready(job, [parent.job, job])
    record = resnets.run(job)
    assert record["first_epochs_from_parent"]
    assert (record["total_params"], record["trainable_params"]) == (541_834, 473_802)
    assert record["optimizer_state"] == ("carried" if carry_state else "reset")
    assert resnets.Run(job).progress.epoch == 2  # its checkpoint loads into the small architecture


@pytest.mark.parametrize("carry_state", [False, True])
def test_conv4_becomes_a_pcn(folder: Path, carry_state: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import cifar10_conv4

    monkeypatch.setattr(cifar10_conv4, "BATCH", 6)
    job = cifar10_conv4.Job("conv4-pcn", 0, 3, folder, carry_state, False, math.inf)
    record = cifar10_conv4.run(job)
    assert (record["total_params"], record["trainable_params"]) == (317_910, 101_810)
    assert record["epoch_of_best_validation"] == 3  # epochs before the switch do not count
    assert record["train_seconds"] > 0


def test_records_are_kept_and_skipped(tmp_path: Path) -> None:
    from records import Records

    path = tmp_path / "results" / "some.json"
    records = Records(path)
    records.add({"network": "conv4", "seed": 0})
    again = Records(path)
    assert again.has(network="conv4", seed=0)
    assert not again.has(network="conv4", seed=1)
    again.add({"network": "conv4", "seed": 1})
    stored = json.loads(path.read_text())
    assert set(stored) == {"command", "commit", "hardware", "versions", "records"}
    assert [record["seed"] for record in stored["records"]] == [0, 1]


@pytest.mark.parametrize("together", [1, 2])
def test_a_failing_run_does_not_stop_the_others(together: int, capsys: pytest.CaptureFixture[str]) -> None:
    from jobs import run_all

    results: list[object] = []
    failed = run_all(["1", "one", "2"], int, results.append, together=together)
    assert failed == 1
    assert sorted(results) == [1, 2]
    assert "ValueError" in capsys.readouterr().err


def test_the_tables_in_the_documentation_are_those_of_the_results() -> None:
    import table

    shown = (EXPERIMENTS.parent / "docs" / "reproduction.md").read_text()
    for path in sorted(table.RESULTS.glob("*.json")):
        assert table.table(path.stem) in shown
