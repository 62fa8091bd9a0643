"""Which channels stay: the best ones, as many as asked for, and never none of a layer's."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pcn.config import L1Threshold
from pcn.errors import ConfigError, CouplingError
from pcn.plans.keep import Request, choose, class_scores, target
from pcn.plans.wiring import Wiring

COUNT = 12


def wiring(outputs: dict[str, list[int]], inputs: dict[str, list[int]] | None = None) -> Wiring:
    def tensors(sides: dict[str, list[int]]) -> dict[str, Tensor]:
        return {name: torch.tensor(classes) for name, classes in sides.items()}

    return Wiring(tensors(outputs), tensors(inputs or {}), COUNT)


def kept(outputs: dict[str, list[int]], *requests: Request, scores: list[float], **blocked: str) -> list[int]:
    choice = choose(list(requests), wiring(outputs), {int(k[1:]): why for k, why in blocked.items()}, _scores(scores))
    mine = sorted({c for classes in outputs.values() for c in classes})
    return [c for c in mine if not choice.dropped[c]]


def _scores(values: list[float]) -> Tensor:
    return torch.tensor([*values, *[0.0] * (COUNT - len(values))])


def test_the_best_stay_and_ties_break_by_index() -> None:
    outputs = {"a": [0, 1, 2, 3, 4]}
    assert kept(outputs, Request("a", 2, True), scores=[1, 5, 2, 5, 5]) == [1, 3]
    assert kept(outputs, Request("a", 0.6, True), scores=[1, 5, 2, 5, 5]) == [1, 3, 4]
    assert kept(outputs, Request("a", L1Threshold(2), True), scores=[1, 5, 2, 5, 5]) == [1, 3, 4]
    assert kept(outputs, Request("a", L1Threshold(9), True), scores=[1, 5, 2, 5, 5]) == [1]


def test_what_is_blocked_stays_and_counts() -> None:
    outputs = {"a": [0, 1, 2, 3]}
    assert kept(outputs, Request("a", 2, True), scores=[1, 2, 3, 4], _0="visible") == [0, 3]
    with pytest.raises(
        ConfigError, match=r"'a' is asked to keep 1 outputs, but none can be dropped: 2 outputs must stay: seen"
    ):
        kept(outputs, Request("a", 1, True), scores=[1, 2, 3, 4], _0="seen", _1="seen")
    choice = choose([Request("a", 1, False)], wiring(outputs), {0: "seen", 1: "seen"}, _scores([1, 2, 3, 4]))
    assert not choice.dropped.any()
    assert choice.reasons == {"a": "2 outputs must stay: seen"}


def test_keeping_all_of_what_must_stay_is_no_contradiction() -> None:
    blocked = dict.fromkeys(range(3), "visible")
    choice = choose([Request("a", 3, True)], wiring({"a": [0, 1, 2]}), blocked, _scores([1, 2, 3]))
    assert not choice.dropped.any()
    assert not choice.reasons


def test_coupled_layers_must_be_asked_for_the_same() -> None:
    outputs = {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}
    assert kept(outputs, Request("a", 2, True), Request("b", 2, True), scores=[1, 2, 3, 4]) == [2, 3]
    with pytest.raises(CouplingError, match=r"'a' and 'b' share channels .* asked to keep 2 and 3 outputs; give them"):
        kept(outputs, Request("a", 2, True), Request("b", 3, True), scores=[1, 2, 3, 4])
    with pytest.raises(CouplingError):
        kept(outputs, Request("a", 2, False), Request("b", 3, False), scores=[1, 2, 3, 4])


def test_one_wish_for_all_contradicts_nobody() -> None:
    # The channels of "whole" are those of "left" and "right" side by side: half of 3, of 5 and of 8 do not add up.
    outputs = {"whole": list(range(8)), "left": [0, 1, 2], "right": [3, 4, 5, 6, 7]}
    requests = [Request(name, 0.5, False) for name in outputs]
    choice = choose(requests, wiring(outputs), {}, _scores([1, 2, 3, 4, 5, 6, 7, 8]))
    left = [int((~choice.dropped[torch.tensor(classes)]).sum()) for classes in outputs.values()]
    assert left == [4, 2, 2]
    assert not choice.reasons
    requests = [Request(name, 0.9, False) for name in outputs]
    choice = choose(requests, wiring(outputs), {}, _scores([1, 2, 3, 4, 5, 6, 7, 8]))
    assert choice.reasons in ({}, {"whole": "it shares channels with 'left', of whose outputs 3 stay"})


def test_no_layer_loses_all_of_its_channels() -> None:
    outputs = {"whole": list(range(8)), "left": [0, 1, 2]}
    inputs = {"reader": [6, 7]}
    request = Request("whole", 3, True)
    choice = choose([request], wiring(outputs, inputs), {}, _scores([1, 2, 3, 8, 8, 8, 4, 5]))
    assert (~choice.dropped[:8]).nonzero().flatten().tolist() == [2, 3, 7]
    with pytest.raises(ConfigError, match="other layers need them"):
        choose([Request("whole", 1, True)], wiring(outputs, inputs), {}, _scores([1, 2, 3, 8, 8, 8, 4, 5]))
    above = choose([Request("whole", L1Threshold(9), True)], wiring(outputs, inputs), {}, _scores([1, 2, 3, 8]))
    assert (~above.dropped[:8]).nonzero().flatten().tolist() == [2, 6]


def test_channels_that_go_in_groups_are_counted_as_such() -> None:
    outputs = {"a": [0, 1, 2, 0, 1, 2]}
    assert kept(outputs, Request("a", 4, True), scores=[1, 3, 2]) == [1, 2]
    assert kept(outputs, Request("a", 5, False), scores=[1, 3, 2]) == [1, 2]
    with pytest.raises(ConfigError, match="go in groups of several"):
        kept(outputs, Request("a", 5, True), scores=[1, 3, 2])
    assert kept(outputs, Request("a", 1, False), scores=[1, 3, 2]) == [0, 1, 2]


@given(st.data())
def test_every_request_is_met_or_explained(data: st.DataObject) -> None:
    """Random couplings, wishes by glob: what stays is what was asked for, or there is a reason."""
    layers = data.draw(st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 7), min_size=1, max_size=8)))
    blocked = dict.fromkeys(data.draw(st.sets(st.integers(0, 7), max_size=3)), "because")
    keep = data.draw(st.one_of(st.integers(1, 8), st.sampled_from([0.25, 0.5, 1.0])))
    scores = _scores(data.draw(st.lists(st.integers(0, 9), min_size=8, max_size=8)))
    choice = choose([Request(name, keep, False) for name in layers], wiring(layers), blocked, scores)
    assert not any(choice.dropped[c] for c in blocked)
    assert set(choice.dropped.nonzero().flatten().tolist()) <= set(chain.from_iterable(layers.values()))
    for name, classes in layers.items():
        left = sum(not choice.dropped[c] for c in classes)
        assert left >= 1
        assert left <= target(keep, len(classes)) or name in choice.reasons


def test_scores_are_means_over_activations_and_sums_over_positions() -> None:
    inputs = {"first": [0, 0, 1, 1], "second": [0, 1], "twin": [0, 1]}
    rows = {"first": torch.tensor([1.0, 2.0, 3.0, 4.0]), "second": torch.tensor([5.0, 6.0])}
    rows["twin"] = torch.tensor([9.0, 9.0])  # reads what "second" reads, in more directions
    activations = {"first": "x", "second": "y", "twin": "y"}
    scores = class_scores(wiring({}, inputs), rows, activations)
    assert scores[:3].tolist() == [(3 + 9) / 2, (7 + 9) / 2, 0]
