"""The arms differ from the paper's protocol in one thing each, branch off one parent, and run to the end."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest
import torch

from pcn.costs.count import count
from pcn.nn import PCModule


def make_job(folder: Path, network: str, arm: str, epochs: int = 3) -> object:
    import open_questions

    options = argparse.Namespace(data=folder, work=folder.parent / "work", epochs=epochs)
    job = open_questions.make_job(network, arm, 0, options)
    return dataclasses.replace(job, settings=dataclasses.replace(job.settings, batch=6))


def test_an_arm_changes_one_thing(folder: Path) -> None:
    import open_questions as questions

    for network, arms in questions.ARMS.items():
        paper = make_job(folder, network, questions.PAPER)
        for arm in arms:
            job = make_job(folder, network, arm)
            changed = {*job.settings.differences(paper.settings)} - {"model_options"}
            assert changed == questions.CHANGES[arm].keys()
            assert (job.trunk == paper.trunk) == (arm != questions.SCRATCH)
            assert job.trunk_epoch in (0, int(paper.settings.switch_at.replace("never", "0")))
    orders = {"project first", "kept block"}
    assert orders < set(questions.ARMS["conv4-pcn"])  # where outputs are dropped
    assert orders < set(questions.ARMS["wide_resnet20-pcn2"])
    assert not orders & set(questions.ARMS["wide_resnet20-pcn1"])


@pytest.mark.slow
def test_arms_branch_off_one_parent_and_wait_for_it(folder: Path) -> None:
    import open_questions as questions
    from runs import run, trunk_ready

    jobs = [
        make_job(folder, "conv4-pcn", arm) for arm in (questions.PAPER, "random basis", "basis trained", "from scratch")
    ]
    ready = trunk_ready(jobs)
    assert [ready(job, jobs) for job in jobs] == [True, False, False, True]
    assert ready(jobs[1], jobs[1:])  # the one to wait for has failed
    records = [run(job) for job in jobs]
    assert all(ready(job, jobs) for job in jobs)
    assert [record["first_epochs_from_parent"] for record in records] == [False, True, True, False]
    assert [record["trainable_params"] for record in records] == [101_810, 101_810, 317_910, 101_810]
    assert [record["switch_epoch"] for record in records] == [2, 2, 2, None]


def test_an_arm_of_the_wide_network(folder: Path) -> None:
    from runs import run

    record = run(make_job(folder, "wide_resnet20-pcn1", "train-mode statistics", epochs=2))
    assert record["network"] == "wide_resnet20-pcn1, train-mode statistics"
    assert record["trainable_params"] == 1_094_154


def test_a_network_from_scratch_starts_at_the_scale_of_its_parent() -> None:
    import open_questions as questions

    torch.manual_seed(0)
    model = questions.from_scratch("wide_resnet20-pcn1")
    assert count(model).trainable == 1_094_154
    layers = [module for module in model.modules() if isinstance(module, PCModule)]
    for layer in layers:
        torch.testing.assert_close(layer.basis.T @ layer.basis, torch.eye(layer.rank), rtol=0, atol=1e-5)
        assert not layer.bias.any()
    images = torch.randn(8, 3, 32, 32)
    outputs = {}
    for layer in layers:
        layer.register_forward_hook(lambda layer, given, made: outputs.update({layer: (given[0], made)}))
    with torch.no_grad():
        model(images)
    for given, made in outputs.values():
        assert 0.5 < float(made.square().mean() / (2 * given.square().mean())) < 2
