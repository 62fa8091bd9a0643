"""The CIFAR-10 experiments run to the end on a few generated images, resume exactly and keep their records."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pcn.costs.count import count
from pcn.training.optimizers import learning_rate
from pcn.training.requests import build_model

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def resnet_job(folder: Path, work: str, network: str = "resnet20", epochs: int = 3, **changes: object) -> object:
    import cifar10_resnets

    options = argparse.Namespace(
        data=folder,
        work=folder.parent / work,
        epochs=epochs,
        checkpoint_every=1,
        carry_state=changes.pop("carry_state", False),
        recalibrate=False,
        together=1,
        shared=False,
        eager=True,
    )
    job = cifar10_resnets.make_job(network, 0, options)
    return dataclasses.replace(job, settings=dataclasses.replace(job.settings, batch=4), **changes)


def test_the_schedule_is_the_papers_and_scales(folder: Path) -> None:
    def rates(network: str, epochs: int, *ends: int) -> list[float]:
        settings = resnet_job(folder, "work", network, epochs).settings
        return [round(learning_rate(settings, end - 0.5), 6) for end in ends]

    assert rates("wide_resnet20-pcn1", 182, 1, 91, 92, 136, 137, 182) == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert rates("wide_resnet20-pcn1", 60, 30, 31, 45, 46) == [0.1, 0.01, 0.01, 0.001]
    assert rates("resnet110", 182, 1, 2, 92) == [0.01, 0.1, 0.01]
    assert resnet_job(folder, "work", "wide_resnet20-pcn1", 182).settings.switch_at == "15"
    assert resnet_job(folder, "work", "wide_resnet20-pcn1", 60).settings.switch_at == "5"
    half = build_model(resnet_job(folder, "work", "wide_resnet20-half").settings)
    assert count(half).trainable == 1_085_674


def test_a_run_that_was_stopped_ends_like_one_that_was_not(folder: Path) -> None:
    from runs import run

    whole = run(resnet_job(folder, "whole"))
    late = resnet_job(folder, "late", deadline=time.time() + 1e-3)
    stops = 0
    while (record := run(late)) is None:
        stops += 1
        late = dataclasses.replace(late, deadline=time.time() + 0.5)
    assert stops >= 1
    times = {"train_seconds", "setup_seconds", "switch_seconds", "energy_j"}
    assert {k: v for k, v in record.items() if k not in times} == {k: v for k, v in whole.items() if k not in times}
    weights = [
        load_file(folder.parent / work / "resnet20-seed0-epochs3/model/model.safetensors") for work in ("whole", "late")
    ]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_record_names_the_commits_at_which_its_run_began(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import records
    from runs import run

    def run_at(commit: str, **changes: object) -> dict[str, object] | None:
        monkeypatch.setattr(records, "commit", lambda: commit)
        records.commit_at_start.cache_clear()
        return run(resnet_job(folder, "work", **changes))

    def moves_on(_: object) -> dict[str, object]:
        monkeypatch.setattr(records, "commit", lambda: "later")
        return {}

    assert run_at("abc", deadline=time.time() + 1e-1, each_epoch=moves_on) is None
    assert run_at("def")["commit"] == "abc+def"
    records.commit_at_start.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("carry_state", [False, True])
def test_a_pcn_branches_off_its_parents_first_epochs(folder: Path, carry_state: bool) -> None:
    from runs import run, trunk_ready

    parent = resnet_job(folder, "work", "wide_resnet20", epochs=2)
    assert run(parent)["switch_epoch"] is None
    job = resnet_job(folder, "work", "wide_resnet20-pcn2", epochs=2, carry_state=carry_state)
    assert job.trunk.exists()
    assert trunk_ready([parent, job])(job, [parent, job])
    record = run(job)
    assert record["first_epochs_from_parent"]
    assert (record["total_params"], record["trainable_params"]) == (541_834, 473_802)
    assert record["optimizer_state"] == ("carried" if carry_state else "reset")
    alone = run(resnet_job(folder, "alone", "wide_resnet20-pcn2", epochs=2, carry_state=carry_state))
    assert not alone["first_epochs_from_parent"]
    assert alone["test_accuracy"] == record["test_accuracy"]
    assert alone["validation_after_switch"] == record["validation_after_switch"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pcn_trains_with_its_kernels(folder: Path) -> None:
    from runs import run

    record = run(resnet_job(folder, "work", "wide_resnet20-pcn2", epochs=2, fused=True))
    assert record["trainable_params"] == 473_802


@pytest.mark.parametrize("event", ["resumed", "branched", "fade", "fused", "ready", "whatever comes next"])
def test_no_event_of_a_run_is_without_words(event: str) -> None:
    from runs import describe

    assert describe({"event": event, "epoch": 3, "step": 40, "seconds": 2.5})


@pytest.mark.parametrize("carry_state", [False, True])
def test_conv4_becomes_a_pcn(folder: Path, carry_state: bool) -> None:
    import cifar10_conv4
    from runs import Job, run

    settings = cifar10_conv4.settings("conv4-pcn", 0, 3, folder, carry_state=carry_state)
    record = run(Job("conv4-pcn", dataclasses.replace(settings, batch=6)))
    assert (record["total_params"], record["trainable_params"]) == (317_910, 101_810)
    assert record["epoch_of_best_validation"] == 3  # epochs before the switch do not count
    assert record["train_seconds"] > 0


def test_the_dimensions_of_conv4_are_followed_over_the_epochs(folder: Path) -> None:
    import conv4_dimensions
    from cifar10_conv4 import settings
    from runs import Job, run

    short = dataclasses.replace(settings("conv4", 0, 2, folder, carry_state=False), batch=6)
    record = run(Job("conv4", short, each_epoch=lambda trainer: {"found": conv4_dimensions.THRESHOLD}))
    assert record["curve"] == [{"epoch": 1, "found": 0.1}, {"epoch": 2, "found": 0.1}]


def test_robustness_transforms_all_layers_but_the_first_and_the_one_left_out(folder: Path) -> None:
    import conv4_robustness as robustness
    from runs import Job, run

    assert len(robustness.ROBUSTNESS) == 20
    assert len(robustness.ABLATION) == 24
    for left_out in (None, "fc1"):
        settings = robustness.settings((1e-4, 0.1, 1, left_out), 0, folder)
        short = dataclasses.replace(settings, batch=6, epochs=2)
        record = run(Job("conv4", short, at_the_end=robustness.ranks))
        assert record["switch_epoch"] == 1
        assert set(record["ranks"]) == {"conv2", "conv3", "conv4", "fc1", "fc2", "output"} - {left_out}


def test_robustness_runs_that_branch_off_a_parent_are_as_if_they_had_trained_it(folder: Path) -> None:
    import conv4_robustness as robustness
    from runs import run

    options = robustness.arguments().parse_args(["--data", str(folder), "--work", str(folder.parent), "--seeds", "0"])
    records = robustness.Records(folder.parent / "none.json")
    jobs = [job for job in robustness.jobs(options, records) if job.trunk_epoch == 1][:2]
    first, second = (
        dataclasses.replace(job, settings=dataclasses.replace(job.settings, batch=6, epochs=3)) for job in jobs
    )
    whole = run(dataclasses.replace(second, trunk=None))
    run(first)
    branched = run(second)
    assert (whole.pop("first_epochs_from_parent"), branched.pop("first_epochs_from_parent")) == (False, True)
    taken = {"train_seconds", "switch_seconds", "setup_seconds"}
    assert {name for name in whole if branched[name] != whole[name]} <= taken


def test_the_hidden_dimensions_of_the_mnist_network_are_counted(mnist: Path) -> None:
    import mnist_width
    from runs import Job, run

    settings = dataclasses.replace(mnist_width.settings(20, 0, mnist), epochs=5)
    record = run(Job("width 20", settings, at_the_end=mnist_width.dimensions))
    assert record["width"] == 20
    assert record["samples"] == 63
    assert 0 <= record["effective_dimensions"] <= 20


def test_records_are_kept_and_skipped(tmp_path: Path) -> None:
    from records import Records

    path = tmp_path / "results" / "some.json"
    records = Records(path)
    records.add({"network": "conv4", "seed": 0})
    again = Records(path)
    assert again.has(network="conv4", seed=0)
    assert not again.has(network="conv4", seed=1)
    again.add({"network": "conv4", "seed": 1})
    records.add({"network": "conv4", "seed": 2})  # what another process has added meanwhile stays
    stored = json.loads(path.read_text())
    assert set(stored) == {"command", "commit", "hardware", "versions", "records"}
    assert [record["seed"] for record in stored["records"]] == [0, 1, 2]
    written = path.stat()
    assert not again.add({"network": "conv4", "seed": 2}, lambda record: record["seed"] == 2)  # nor twice
    assert again.has(seed=2)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert again.add({"network": "conv4", "seed": 3}, lambda record: record["seed"] == 3)


@pytest.mark.parametrize("together", [1, 2])
def test_a_failing_run_does_not_stop_the_others(together: int, capfd: pytest.CaptureFixture[str]) -> None:
    from jobs import run_all

    results: list[object] = []
    failed = run_all(["1", "one", "2"], int, results.append, together=together)
    assert failed == 1
    assert sorted(results) == [1, 2]
    assert "ValueError" in capfd.readouterr().err
    assert run_all(["3"], int, results.append, together=together, until=time.time()) == 0
    assert sorted(results) == [1, 2]


def test_the_tables_in_the_documentation_are_those_of_the_results() -> None:
    import table

    shown = (EXPERIMENTS.parent / "docs" / "reproduction.md").read_text()
    there = [name for name in table.TABLES if (table.RESULTS / f"{name}.json").exists()]
    assert len(there) >= 3
    for name in there:
        assert f"<!-- table {name} -->\n\n{table.table(name)}\n" in shown


def test_figures_are_drawn_from_the_results_alone_and_the_same_every_time(tmp_path: Path) -> None:
    plots = pytest.importorskip("plots", reason="needs matplotlib", exc_type=ImportError)
    records = [
        {"width": width, "effective_dimensions": width // 10, "test_accuracy": 97.0 + seed / 10, "seed": seed}
        for width in (50, 100)
        for seed in (0, 1)
    ]
    (tmp_path / "mnist_width.json").write_text(json.dumps({"records": records}))
    for folder in ("one", "two"):
        assert list(plots.draw(tmp_path, tmp_path / folder)) == ["mnist_width"]
    for ending in ("png", "svg"):
        first, second = ((tmp_path / folder / f"mnist_width.{ending}").read_bytes() for folder in ("one", "two"))
        assert first == second
