"""Trials of ideas for the switch: runs fork from one state, read no test set, and the page says what they gave."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pcn.training import Settings
from pcn.training.data import ImageData
from random_files import write_cifar10

ROOT = Path(__file__).parents[2]
TRIED = ["default", "fresh optimizer without decay", "two-sided", "two cuts, half first"]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Both networks on a few images, and a test set that nothing may read."""
    import rewriting_trials as each

    def short(whole: Callable[[int, Path], Settings]) -> Callable[[int, Path], Settings]:
        return lambda seed, data: replace(whole(seed, data), batch=6, epochs=6)

    def refuse(*arguments: object) -> None:
        raise AssertionError("the test set was read")

    monkeypatch.setattr(each.wide_dense, "WIDTH", 24)
    for name, network in each.NETWORKS.items():
        images = network.images and 12
        monkeypatch.setitem(each.NETWORKS, name, replace(network, settings=short(network.settings), images=images))
    monkeypatch.setattr(ImageData, "test", refuse)
    data, work = write_cifar10(tmp_path / "data"), tmp_path / "work"
    how = {"time_limit": float("inf"), "together": 1, "shared": True}
    return argparse.Namespace(data=data, work=work, arms=TRIED, seeds=[0], networks=list(each.NETWORKS), **how)


def test_every_arm_is_there_once_for_its_seeds_within_its_budget() -> None:
    import rewriting_trials as each

    records = all_records()
    there = {key(record): record for record in records}
    assert len(there) == len(records)
    assert there.keys() >= set(each.wanted(list(each.ARMS), each.SEEDS[:2], list(each.NETWORKS)))
    assert there.keys() >= set(each.wanted(each.FIRST, each.SEEDS, list(each.NETWORKS)))
    assert there.keys() <= set(each.wanted(list(each.ARMS), each.SEEDS, list(each.NETWORKS)))
    for record in records:
        arm, default = each.ARMS[record["arm"]], there[record["network"], each.DEFAULT, record["seed"]]
        assert 0.96 < record["trainable_params"] / default["trainable_params"] < 1.01
        assert "test_accuracy" not in record
        if "fade_epochs" not in arm.changes and arm.switch is None:
            assert record["switch_epoch"] == each.NETWORKS[record["network"]].switch_after
            assert record["validation_before_switch"] == default["validation_before_switch"]  # one state for all


@pytest.mark.filterwarnings("ignore:Adam is not SGD or Muon")  # between two cuts its state starts afresh
def test_the_first_arms_come_first_and_what_is_there_is_not_run_again(options: argparse.Namespace) -> None:
    import rewriting_trials as each
    from records import Records

    records = Records(options.work.parent / "found.json")
    each.do(records, options)
    there = [(record["network"], record["arm"]) for record in records.records]
    dense, convolutions = each.NETWORKS
    first = [(dense, arm) for arm in (TRIED[0], TRIED[2])] + [(convolutions, arm) for arm in TRIED[:3]]
    assert there == [*first, (dense, TRIED[3]), (convolutions, TRIED[3])]
    each.do(records, options)
    assert len(records.records) == len(there)
    assert each.table(records.records).count("\n") == 1 + len(there)


def test_a_run_that_forks_ends_as_one_from_the_start(options: argparse.Namespace) -> None:
    import rewriting_trials as each
    from records import Records

    options.arms = [each.DEFAULT]
    whole, forked = (Records(options.work.parent / f"{name}.json") for name in ("whole", "forked"))
    each.do(whole, options)
    assert len(list(options.work.iterdir())) == len(each.NETWORKS)
    each.do(forked, options)
    assert whole.records == forked.records


def test_weights_decay_up_to_the_switch_alone_where_that_is_asked(options: argparse.Namespace) -> None:
    import rewriting_trials as each
    from pcn.training import load_data, world
    from pcn.training.step import training_dtype

    def decays(arm: str) -> list[tuple[int, float]]:
        """The largest weight decay after each epoch."""
        found, job = [], each.job(each.CONVOLUTIONS, arm, 0, options)

        def tell(record: Any) -> None:
            if record["event"] == "epoch":
                found.append((record["epoch"], max(group["weight_decay"] for group in trainer.optimizer.param_groups)))

        with world() as here:
            data = load_data(job.settings, here.device, training_dtype(here.device))
            trainer = job.make_trainer(job.settings, data, world=here, tell=tell)
            trainer.run()
        return found

    assert decays("fresh optimizer") == [(epoch, 5e-4) for epoch in range(1, 7)]
    assert decays("fresh optimizer without decay") == [(epoch, 5e-4 if epoch <= 2 else 0.0) for epoch in range(1, 7)]


def test_the_page_says_which_arms_are_above_and_below_the_default() -> None:
    import rewriting_trials as each

    said, (dense, convolutions) = " ".join(page().split()), each.NETWORKS

    def listed(network: str, sign: int) -> str:
        """The arms of a network that are on one side of the default on every seed."""
        found = {arm: differences(name, arm) for name, arm in pairs() if name == network}
        same = [arm for arm, values in found.items() if all(sign * value > 0 for value in values)]
        return "; ".join(f"{arm} ({apart(network, arm)})" for arm in same) or "none"

    for which, network in (("the default", dense), ("it", convolutions)):
        above, below = listed(network, 1), listed(network, -1)
        assert f"above {which} on every seed: {above}. Below it on every seed: {below}." in said
    assert f"Of {len(pairs())} differences one or two would" in said


def test_the_page_says_by_how_much() -> None:
    import rewriting_trials as each

    said, (dense, convolutions) = " ".join(page().split()), each.NETWORKS
    half, quarter, none = (apart(convolutions, f"precondition {share}") for share in ("1/2", "1/4", "0"))
    assert f"half of the way, the best of three, is {half} from the default, which goes all of it" in said
    assert f"a quarter {quarter}, and not at all {none}. Half" in said
    assert float(half) > max(float(quarter), float(none))
    one, three = (apart(dense, f"fade over {length}") for length in ("1 epoch", "3 epochs"))
    assert f"one less is {one}, and three are {three}." in said
    assert f"To train the bases as well is {apart(dense, 'basis trained')} there" in said
    stored, usual = (f"{average(dense, arm, 'total_params') / 1e6:.1f}" for arm in ("two-sided", each.DEFAULT))
    assert f"Two-sided it stores {stored} million numbers, not {usual}." in said
    without, decayed = (apart(convolutions, f"fresh optimizer{how}") for how in (" without decay", ""))
    assert f"with a fresh optimizer {without} without and {decayed} with decay." in said
    anew = "batch norm recalibrated"
    assert set(differences(convolutions, anew)) == {0.0}
    with_it, usual = (f"{average(convolutions, arm, 'validation_after_switch'):.1f}" for arm in (anew, each.DEFAULT))
    assert f"right after the switch: {with_it} with it, {usual} without." in said


def apart(name: str, arm: str) -> str:
    """By how much an arm is above the default, in the mean."""
    return f"{statistics.fmean(differences(name, arm)):+.2f}"


def average(name: str, arm: str, number: str) -> float:
    return statistics.fmean(r[number] for r in all_records() if (r["network"], r["arm"]) == (name, arm))


def key(record: dict[str, Any]) -> tuple[str, str, int]:
    return record["network"], record["arm"], record["seed"]


def pairs() -> list[tuple[str, str]]:
    """Every network with every arm that is compared with its default, in the table's order."""
    import rewriting_trials as each

    return [(name, arm) for name in each.NETWORKS for arm in list(each.ARMS)[1:] if name in each.ARMS[arm].networks]


def differences(name: str, arm: str) -> list[float]:
    """The accuracies of an arm minus those of the default, seed by seed."""
    import rewriting_trials as each

    ours, theirs = (each.accuracies(all_records(), name, which) for which in (arm, each.DEFAULT))
    return [ours[seed] - theirs[seed] for seed in ours]


def page() -> str:
    return (ROOT / "docs" / "trials.md").read_text(encoding="utf-8")


def all_records() -> list[dict[str, Any]]:
    import rewriting_trials as each

    return json.loads((each.RESULTS / "rewriting_trials.json").read_text())["records"]
