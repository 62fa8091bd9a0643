"""What README and the comparison's text say of differences is what the records give."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
INTERVAL = re.compile(r"([+-]?\d+\.\d\d) to ([+-]?\d+\.\d\d)(?:, (two|three|five) (?:seeds|pairs))?")
MADE = re.compile(r"<!-- (comparison|search|short comparison) -->.*?<!-- end of \1 -->", re.DOTALL)
HOW_MANY = {"two": 2, "three": 3, "five": 5}

Runs = dict[int, float]


def of_the_comparison() -> list[list[Runs]]:
    """Accuracies by seed of every method and size, those together that are compared: of one parent and length."""
    from peers.report import by_seed
    from peers.results import Results

    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Any]]] = {}
    for record in Results().final.records:
        group = groups.setdefault((record["parent"], record["epochs"]), {})
        group.setdefault((record["method"], record.get("target")), []).append(record)
    return [[by_seed(runs) for runs in group.values()] for group in groups.values()]


def of_the_trials() -> list[list[Runs]]:
    import planner_search
    from peers.report import by_seed
    from peers.results import RESULTS
    from records import Records

    groups: dict[int, dict[str, list[Any]]] = {}
    for record in Records(RESULTS / planner_search.RECORDS).records:
        groups.setdefault(record["epochs"], {}).setdefault(record["arm"], []).append(record)
    return [[by_seed(runs, "validation_accuracy") for runs in group.values()] for group in groups.values()]


def of_the_dense_network() -> list[list[Runs]]:
    """Accuracies by seed of every network at the rate that is best in its grid, which has no test accuracies."""
    from peers.report import by_seed
    from peers.results import RESULTS
    from records import Records

    groups: dict[str, list[Any]] = {}
    for record in Records(RESULTS / "wide_dense.json").records:
        groups.setdefault(record["network"], []).append(record)
    chosen = []
    for runs in groups.values():
        grid = [run for run in runs if run["test_accuracy"] is None]
        rate = max(grid, key=lambda run: run["validation_accuracy"])["learning_rate"]
        chosen.append(by_seed([run for run in runs if run["learning_rate"] == rate]))
    return [[runs for runs in chosen if runs]]


@cache
def known() -> dict[tuple[str, str], set[int]]:
    """Every interval of paired differences and every range of accuracies, as text, with the seeds that it is of."""
    from peers.intervals import paired_difference

    found: dict[tuple[str, str], set[int]] = {}
    for group in [*of_the_comparison(), *of_the_trials(), *of_the_dense_network()]:
        for runs in group:
            found.setdefault((f"{min(runs.values()):.2f}", f"{max(runs.values()):.2f}"), set()).add(len(runs))
        for ours, theirs in permutations(group, 2):
            difference = paired_difference(ours, theirs)
            if difference is not None and difference.half is not None:
                ends = f"{difference.low:+.2f}", f"{difference.high:+.2f}"
                found.setdefault(ends, set()).add(difference.pairs)
    return found


@pytest.mark.parametrize(("page", "least"), [("README.md", 7), ("docs/comparison.md", 40)])
def test_every_interval_in_the_text_is_one_of_the_records(page: str, least: int) -> None:
    text = re.sub(r"\s+", " ", MADE.sub("", (ROOT / page).read_text(encoding="utf-8")))
    stated = INTERVAL.findall(text)
    assert len(stated) >= least
    wrong = []
    for low, high, seeds in stated:
        signed = (f"{float(low):+.2f}", f"{float(high):+.2f}")
        of = known().get(signed, set()) | known().get((low, high), set())
        if not of or (seeds and HOW_MANY[seeds] not in of):
            wrong.append(f"{low} to {high} ({seeds or '?'} seeds)")
    assert wrong == []


def test_whole_runs_take_as_long_as_readme_says() -> None:
    from peers.report import mean
    from peers.results import Results

    shares: dict[str, list[tuple[float, float]]] = {"wide_resnet20": [], "conv4": []}
    timed = [record for record in Results().final.records if record["train_seconds"] is not None]
    for record in timed:
        beside = [each for each in timed if (each["parent"], each["epochs"]) == (record["parent"], record["epochs"])]
        wide = [each for each in beside if each["method"] == "parent"]
        seconds, energy_j = (record[name] / mean(wide, name) for name in ("train_seconds", "energy_j"))
        if record["method"] in ("pcn-planner", "pcn-paper"):
            shares[record["parent"]].append((seconds, energy_j))
        elif record["method"] != "narrow" and record["parent"] == "wide_resnet20" and record["target"] == 1_094_154:
            assert (seconds > 1) == (record["method"] != "parent")
    times, energies = zip(*shares["wide_resnet20"], strict=True)
    stated = f"{min(times):.1f} to {max(times):.1f} times the wide network's seconds and"
    stated += f" {min(energies):.1f} to {max(energies):.1f} times its energy, Conv4's"
    (time, energy), _ = sorted(shares["conv4"], reverse=True)
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert min(times) > 1
    assert f"{stated} {time:.1f} and {energy:.1f} times." in text


def test_steps_take_the_share_that_readme_says() -> None:
    from peers.results import RESULTS

    def shares(network: str, batch: int, file: str = "step_time.json") -> tuple[str, str]:
        """The PCN's and the half-width network's step as shares of the parent's."""
        records = json.loads((RESULTS / file).read_text())["records"]
        (found,) = (each for each in records if (each["network"], each["batch"]) == (network, batch))
        return tuple(f"{found[name] / found['parent_ms']:.2f}" for name in ("pcn_ms", "narrow_ms"))

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [("one H200, batch 1024", 1024), ("one H200, batch 128", 128), ("two CPU cores, batch 32", 32)]
    for name, batch in rows:
        file = "step_time_cpu.json" if batch == 32 else "step_time.json"
        paper, narrow = shares("wide_resnet20-pcn1", batch, file)
        budget, _ = shares("wide_resnet20-budget", batch, file)
        assert f"| {name} | {paper} | {budget} | {narrow} |" in text
    paper, narrow = shares("wide_resnet20x4-pcn1", 1024)
    assert f"| one H200, batch 1024, four times as wide | {paper} | | {narrow} |" in text
