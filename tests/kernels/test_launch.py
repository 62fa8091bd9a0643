"""Launches are remembered by about how many rows they were timed on, and serve the numbers that are near."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import interpreted
from pcn.kernels import launch, tuning
from pcn.kernels.launch import PACKAGED, Choices, Launch
from pcn.kernels.magnitude import ANYWHERE, LARGEST, at_rows, magnitude

pytest.importorskip("triton")

ROWS = st.integers(1, 2**40)
OLD = Launch(16, 16, warps=1)
CANDIDATES = [Launch(rows, 16) for rows in range(16, 16 * (LARGEST + 3), 16)]
POSITIONS = (32 * 32, 16 * 16, 8 * 8)


def used(choices: Choices, rows: int, candidates: Sequence[Launch] = (*CANDIDATES, OLD)) -> Launch:
    return choices.launch("GPU sums 64", rows, candidates, lambda each: each)


@given(ROWS, ROWS)
def test_numbers_of_one_magnitude_are_within_a_factor_of_four(one: int, other: int) -> None:
    few, many = sorted((one, other))
    assert magnitude(few) <= magnitude(many)
    if magnitude(few) == magnitude(many):
        assert many <= 4 * few


@pytest.mark.parametrize("positions", POSITIONS)
def test_usual_batches_are_told_apart_and_a_last_one_is_not(positions: int) -> None:
    small, large = 128 * positions, 1024 * positions
    assert magnitude(small) < magnitude(large)
    for rows in (small, large):
        assert magnitude(rows) == magnitude(rows - rows // 5) == magnitude(rows + rows // 5)


@given(ROWS, st.sets(st.integers(0, LARGEST), min_size=1), st.booleans())
def test_the_nearest_number_of_rows_that_was_timed_is_used(rows: int, timed: set[int], old: bool) -> None:
    choices = Choices()
    choices.found = {at_rows("GPU sums 64", 4**each): CANDIDATES[each] for each in timed}
    if old:
        choices.found["GPU sums 64"] = OLD
    found, away = used(choices, rows), [abs(each - magnitude(rows)) for each in timed]
    if old and min(away) > ANYWHERE:
        assert found == OLD
    else:
        assert abs(CANDIDATES.index(found) - magnitude(rows)) == min(away)
    if magnitude(rows) in timed:
        assert found == CANDIDATES[magnitude(rows)]


@given(ROWS)
def test_what_was_timed_on_an_unknown_number_of_rows_stands_for_any(rows: int) -> None:
    choices = Choices()
    assert used(choices, rows) == CANDIDATES[0]
    choices.found = {"GPU sums 64": OLD, at_rows("GPU sums 640", rows): CANDIDATES[5]}
    assert used(choices, rows) == OLD


def test_packaged_launches_of_an_unknown_number_of_rows_stand_for_any() -> None:
    packaged, choices = Choices(), Choices()
    packaged.load(PACKAGED)
    choices.found = {key: found for key, found in packaged.found.items() if not key.endswith("rows")}
    assert len(choices.found) > 200
    for key, found in choices.found.items():
        for rows in (2**13, 2**16, 2**20):
            assert choices.launch(key, rows, [OLD, found], lambda each: each) == found


def test_a_launch_that_is_no_candidate_gives_way_to_the_next_nearest() -> None:
    choices = Choices()
    choices.found = {at_rows("GPU sums 64", 65536): Launch(1, 1), at_rows("GPU sums 64", 2**20): CANDIDATES[3]}
    assert used(choices, 65536) == CANDIDATES[3]


def test_a_launch_that_does_not_fit_is_given_up_on_as_many_rows_only(tmp_path: Path) -> None:
    from triton.runtime.errors import OutOfResources

    choices = Choices()
    choices.found = {"GPU sums 64": OLD}

    def run(each: Launch) -> Launch:
        if each == OLD:
            raise OutOfResources(2, 1, "shared memory")
        return each

    assert choices.launch("GPU sums 64", 2**20, [*CANDIDATES, OLD], run) == CANDIDATES[0]
    assert choices.found["GPU sums 64"] == OLD
    assert used(choices, 2**10) == OLD
    assert used(choices, 2**20) == CANDIDATES[0]
    choices.save(tmp_path / "launches.json")  # nothing was timed
    assert json.loads((tmp_path / "launches.json").read_text()).keys() == {"GPU sums 64"}


@given(st.dictionaries(ROWS, st.sampled_from(CANDIDATES), max_size=5))
def test_launches_of_several_numbers_of_rows_are_saved_and_loaded(
    tmp_path_factory: pytest.TempPathFactory, found: dict[int, Launch]
) -> None:
    path = tmp_path_factory.mktemp("launches") / "launches.json"
    kept, fresh = Choices(), Choices()
    kept.found = {"GPU sums 64": OLD} | {at_rows("GPU sums 64", rows): each for rows, each in found.items()}
    kept.save(path)
    fresh.load(path)
    assert fresh.found == kept.found
    assert [used(fresh, rows) for rows in found] == [used(kept, rows) for rows in found]


class Timed:
    """A device that is not there, and which kernel was timed on how many rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.choices, self.rows, self.now = Choices(), [], 0
        monkeypatch.setattr(launch, "CHOICES", self.choices)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(launch, "_time_ms", self._time_ms)

    def _time_ms(self, run: Any, candidate: Launch) -> float:
        """More rows are faster in larger tiles."""
        if self.now not in self.rows:
            self.rows.append(self.now)
        return abs(candidate.rows - 16 * magnitude(self.now))

    def run(self, key: str, rows: int) -> Launch:
        self.now = rows
        return self.choices.run(key, rows, CANDIDATES, torch.device("cuda"), lambda each: each)


def test_only_what_is_not_known_on_about_as_many_rows_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = Timed(monkeypatch)
    device.choices.found = {"GPU sums 64": CANDIDATES[0]}  # of any number: it does not stand in the way
    with tuning(tmp_path / "launches.json"):
        found = [device.run("sums 64", rows) for rows in (2**20, 2**20 - 5, 2**13, 2**13, 2**20)]
    assert device.rows == [2**20, 2**13]
    assert [each.rows for each in found] == [160, 160, 96, 96, 160]
    assert device.run("sums 64", 2**19).rows == 160  # no tuning: the nearest
    device.choices.found.clear()
    with tuning(tmp_path / "launches.json"):
        assert [device.run("sums 64", rows).rows for rows in (2**20, 2**16, 2**13)] == [160, 128, 96]
    assert device.rows == [2**20, 2**13, 2**16]


def test_processes_that_compile_on_few_rows_share_out_what_is_timed_on_many(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    for rows in (2048, 2**20):
        device, keys = Timed(monkeypatch), []
        with tuning(anew=True, only=lambda key, keys=keys: keys.append(key) or True):
            device.run("sums 64", rows)
        asked.append(keys)
    assert asked == [["GPU sums 64"]] * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_are_numbers_where_shapes_are_symbols(call: Any, dynamic: bool) -> None:
    """What is compiled asks for a launch when it runs, not when it is traced."""
    assert call(interpreted.rows_of_launches, dynamic) == [(70, int), (90, int)]
