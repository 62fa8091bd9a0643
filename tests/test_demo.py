"""The demo compares like with like."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pcn.demo import Recipe, compare, epochs_in_all
from pcn.demo.digits import load_digits
from pcn.demo.network import FULL, size_of_width, width_of_size
from pcn.demo.results import NARROWER, PARENT, PCN
from pcn.errors import ConfigError

SHORT = Recipe(epochs=2, switch_after=1, seeds=2)


def test_the_split_uses_every_image_once() -> None:
    digits = load_digits(seed=3)
    parts = [digits.train, digits.validation, digits.test]
    assert [len(part.images) for part in parts] == [897, 300, 600]
    together = torch.cat([part.images.flatten(1) for part in parts])
    everything = load_digits(seed=4)
    again = torch.cat([p.images.flatten(1) for p in (everything.train, everything.validation, everything.test)])
    assert not torch.equal(together, again)
    assert sorted(together.tolist()) == sorted(again.tolist())


@given(st.integers(1, FULL))
def test_a_width_is_found_by_its_size(width: int) -> None:
    assert size_of_width(width_of_size(size_of_width(width))) == size_of_width(width)


def test_the_same_seed_gives_the_same_results_and_every_epoch_is_reported() -> None:
    epochs: list[str] = []
    first, second = compare(SHORT, report=epochs.append), compare(SHORT)
    assert len(epochs) == epochs_in_all(SHORT)
    for network in (PARENT, PCN, NARROWER):
        accuracies = first.values(network, "test_accuracy_percent")
        assert accuracies == second.values(network, "test_accuracy_percent")
        assert len(accuracies) == SHORT.seeds
    assert first.mean(NARROWER, "trainable") == pytest.approx(first.mean(PCN, "trainable"), rel=0.05)


def test_the_first_seed_s_pcn_has_a_report() -> None:
    comparison = compare(Recipe(epochs=3, switch_after=2, seeds=1))
    report = comparison.report()
    told = {row["label"]: (row["before"], row["after"]) for row in report["headline"]}
    assert told["Trained parameters"] == (comparison.mean(PARENT, "trainable"), comparison.mean(PCN, "trainable"))
    assert told["Stored numbers"] == (comparison.mean(PARENT, "total"), comparison.mean(PCN, "total"))
    assert report["accuracy"]["test"] == comparison.mean(PCN, "test_accuracy_percent")
    assert [epoch for epoch, _ in report["history"]["epochs"]] == [1, 2, 3]
    assert [epoch for epoch, _ in report["history"]["dimensions"]["fc1"]] == [1, 2]
    assert report["toml"] == 'switch_at = "2"\n'  # when it switched


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 1}, "epochs=1: give at least 2, one before the switch and one after it"),
        ({"epochs": 3}, r"switch_after=5 leaves none of the 3 epochs to .* train longer \(at least 6 epochs\)"),
        ({"epochs": 3, "switch_after": 3}, "switch_after=3 leaves none of the 3 epochs to train the PCN in"),
        ({"switch_after": 0}, "the switch comes after at least one epoch"),
        ({"seeds": 0}, "at least 1"),
        ({"first_seed": -1}, "seed -1"),
    ],
)
def test_an_impossible_recipe_says_what_is_wrong(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe(**wrong)
