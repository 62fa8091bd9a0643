"""Tables on pages are those that their commands print, and what the text says of numbers is what the records give."""

from __future__ import annotations

import json
import re
import statistics
from functools import cache
from importlib import import_module
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
    """Accuracies by seed of every network."""
    import wide_dense
    from peers.report import by_seed
    from records import Records

    final = wide_dense.finals(Records(wide_dense.RESULTS / "wide_dense.json").records)
    return [[by_seed([run for run in final if run["network"] == name]) for name in wide_dense.NETWORKS]]


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


def said_on(page: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))


PAGES = {
    "wide_dense": "comparison.md",
    "small_llama": "comparison.md",
    "sized_for_adam": "planner.md",
    "mnist_worths": "planner.md",
}


@pytest.mark.parametrize("script", PAGES)
def test_a_page_has_the_table_that_its_command_prints(script: str) -> None:
    module = import_module(script)
    records = json.loads((module.RESULTS / f"{script}.json").read_text())["records"]
    assert module.table(records) in (ROOT / "docs" / PAGES[script]).read_text(encoding="utf-8")


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
    from peers.parents import PARENTS
    from peers.report import mean
    from peers.results import Results

    shares: dict[str, list[tuple[float, float]]] = {"wide_resnet20": [], "conv4": []}
    timed = [record for record in Results().final.records if record["train_seconds"] is not None]
    for record in timed:
        beside = [each for each in timed if (each["parent"], each["epochs"]) == (record["parent"], record["epochs"])]
        wide = [each for each in beside if each["method"] == "parent"]
        seconds, energy_j = (record[name] / mean(wide, name) for name in ("train_seconds", "energy_j"))
        if record["method"] in (PARENTS[record["parent"]].now, "pcn-paper"):
            shares[record["parent"]].append((seconds, energy_j))
        elif record["method"] != "narrow" and record["parent"] == "wide_resnet20" and record["target"] == 1_094_154:
            assert (seconds > 1) == (record["method"] != "parent")
    (times, energies), (of_conv4, and_energies) = (zip(*found, strict=True) for found in shares.values())
    seconds, joules, seconds_of_conv4, joules_of_conv4 = (
        f"{min(each):.1f} to {max(each):.1f}" for each in (times, energies, of_conv4, and_energies)
    )
    stated = f"{seconds} times the wide network's seconds and {joules} times its energy, Conv4's"
    assert min(times + of_conv4) > 1
    assert f"{stated} {seconds_of_conv4} and {joules_of_conv4} times." in said_on("README.md")


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


def test_the_small_llamas_end_as_far_apart_as_is_said() -> None:
    import small_llama as each

    records = json.loads((each.RESULTS / "small_llama.json").read_text())["records"]
    final = [record for record in records if record["test_loss"] is not None]

    def apart(ours: str, theirs: str) -> str:
        """By how much more one loses than the other."""
        ends = ([run["test_loss"] for run in final if run["network"] == name] for name in (ours, theirs))
        mine, other = map(statistics.fmean, ends)
        return f"{mine - other:.3f}"

    readme, page = said_on("README.md"), said_on("docs/comparison.md")
    below_narrow, below_ours = apart(each.NARROW, each.PCN), apart(each.PCN, each.NARROW_ROTATED)
    above_wide = apart(each.PCN, each.PARENT)
    assert f"ends {below_narrow} nats per byte below a narrower Llama that trains as many" in readme
    assert f"rewritten in all of its own ends {below_ours} below the PCN" in readme
    assert f"ends {below_narrow} nats per byte below a narrower one" in page
    assert f"and {above_wide} above the wide one. A narrow Llama" in page
    assert f"principal coordinates ends {below_ours} below the PCN" in page
    assert f"by {below_narrow} in the mean, and ends {above_wide} above the wide one" in page
    assert f"ends {below_ours} below the PCN and {apart(each.PARENT, each.NARROW_ROTATED)} below the wide Llama" in page
    assert f"so rewritten {apart(each.PARENT, each.ROTATED)} below itself" in page
    assert f"ends {apart(each.LOW_RANK, each.NARROW)} above the narrower Llama" in page
    assert f"ends {apart(each.LOW_RANK_STORED, each.PCN)} above the PCN" in page


def test_the_wide_network_ends_in_its_coordinates_as_is_said() -> None:
    import wide_dense as each

    records = json.loads((each.RESULTS / "wide_dense.json").read_text())["records"]
    grid = [run for run in records if run["seed"] == each.GRID_SEED]
    rotated, ours, wide = (
        f"{max(run['validation_accuracy'] for run in grid if run['network'] == name):.2f}"
        for name in (each.ROTATED, each.PCN, each.PARENT)
    )
    said = f"network has {rotated} on the validation split, the PCN {ours} and the wide network as it is {wide}"
    assert said in said_on("docs/comparison.md")


def test_what_sizing_does_to_single_layers_is_what_budgets_say() -> None:
    import mnist_worths
    import wide_dense as each

    final = each.finals(json.loads((each.RESULTS / "wide_dense.json").read_text())["records"])

    def accuracy(name: str) -> str:
        return f"{statistics.fmean(run['test_accuracy'] for run in final if run['network'] == name):.2f}"

    def gained(ours: str, theirs: str) -> tuple[float, float]:
        """By how much one arm is above another on MNIST, at the share where it is so by least and by most."""
        records = json.loads((mnist_worths.RESULTS / "mnist_worths.json").read_text())["records"]
        means = {
            share: [
                statistics.fmean(r["validation_accuracy"] for r in records if r["network"] == f"hedged, {arm} {share}")
                for arm in (ours, theirs)
            ]
            for share in mnist_worths.SHARES
        }
        apart = [mine - other for mine, other in means.values()]
        return min(apart), max(apart)

    page = said_on("docs/planner.md")
    first, every, none = map(accuracy, (each.AT_ONCE_FIRST_UNSIZED, each.AT_ONCE, each.AT_ONCE_UNSIZED))
    assert f"then ends at {first}, with every layer sized at {every} and with none at {none}" in page
    less, more = gained("all but the first layer sized for Adam", "sized for Adam")
    assert f"on MNIST that makes {-less:.2f} less to {more:.2f} more" in page
    before = "before any training, "
    least, most = gained(f"{before}all but the first layer sized", f"{before}sized for Adam")
    assert f"On MNIST it is {least:.2f} to {most:.2f} above every layer sized" in page
    assert f"ends at {accuracy(each.PCN)} with every layer sized and at {accuracy(each.FIRST_UNSIZED)} where" in page
