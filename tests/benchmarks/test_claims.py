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
    "coordinate_steps": "comparison.md",
    "rewriting_trials": "trials.md",
    "sized_for_adam": "planner.md",
    "mnist_worths": "trials.md",
}


@pytest.mark.parametrize("script", PAGES)
def test_a_page_has_the_table_that_its_command_prints(script: str) -> None:
    module = import_module(script)
    records = json.loads((module.RESULTS / f"{script}.json").read_text())["records"]
    assert module.table(records) in (ROOT / "docs" / PAGES[script]).read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "least"), [("README.md", 5), ("docs/comparison.md", 40), ("docs/trials.md", 15)])
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
    of_others: list[float] = []  # seconds of the other PCNs
    timed = [record for record in Results().final.records if record["train_seconds"] is not None]
    for record in timed:
        beside = [each for each in timed if (each["parent"], each["epochs"]) == (record["parent"], record["epochs"])]
        wide = [each for each in beside if each["method"] == "parent"]
        seconds, energy_j = (record[name] / mean(wide, name) for name in ("train_seconds", "energy_j"))
        if record["method"] in (PARENTS[record["parent"]].now, "pcn-paper"):
            shares[record["parent"]].append((seconds, energy_j))
        elif record["method"].startswith("pcn-"):
            of_others.append(seconds)
        if record["method"] != "narrow" and record["parent"] == "wide_resnet20" and record["target"] == 1_094_154:
            assert (seconds > 1) == (record["method"] != "parent")
    (times, energies), (of_conv4, and_energies) = (zip(*found, strict=True) for found in shares.values())
    seconds, joules, seconds_of_conv4, joules_of_conv4 = (
        f"{min(each):.1f} to {max(each):.1f}" for each in (times, energies, of_conv4, and_energies)
    )
    assert min(*times, *of_conv4, *of_others) > 1
    readme = said_on("README.md")
    ours = f"take {seconds} times the wide network's seconds and {joules} times its energy on WideResNet-20"
    assert f"{ours}, {seconds_of_conv4} and {joules_of_conv4} times on Conv4: to compile" in readme


def test_timed_runs_of_182_epochs_are_fused_where_their_records_say_false() -> None:
    from peers.comparison import FUSED_FROM
    from peers.results import Results

    assert FUSED_FROM == 182
    found = Results().final.records
    long = [each["fused"] for each in found if each["train_seconds"] is not None and each["epochs"] >= FUSED_FROM]
    assert not any(each.get("fused") for each in found)
    assert long.count(False) == len(long) == 5
    page = said_on("docs/comparison.md")
    assert "which never says true. The run that is timed alone is fused from 182 epochs on" in page


QUARTER, NINTH, OF_CONV4 = 1_094_154, 473_802, 101_810


def final_runs(method: str, epochs: int, target: int) -> list[Any]:
    """A method's runs of the comparison at a size, which says the network too; the wide network has no size."""
    from peers.results import Results

    parent = "conv4" if target == OF_CONV4 else "wide_resnet20"
    found = [run for run in Results().final.records if (run["method"], run["epochs"]) == (method, epochs)]
    return [run for run in found if run["parent"] == parent and (method == "parent" or run["target"] == target)]


def above(theirs: str, epochs: int, target: int) -> Any:
    """By how much the planner's PCN is above another network."""
    from peers.intervals import paired_difference
    from peers.report import by_seed

    return paired_difference(*(by_seed(final_runs(name, epochs, target)) for name in ("pcn-planner", theirs)))


def test_what_was_aimed_at_is_reached_where_it_is_said_to_be() -> None:
    from peers.results import Results

    def shown(method: str, epochs: int, target: int) -> str:
        """The mean of the test accuracies, and their range."""
        runs = [run["test_accuracy"] for run in final_runs(method, epochs, target)]
        return f"{statistics.fmean(runs):.2f} ({min(runs):.2f} to {max(runs):.2f}"

    page = said_on("docs/comparison.md")
    narrow = above("narrow", 60, QUARTER)
    assert narrow.mean >= 0.5
    assert narrow.low > 0
    assert f"| yes | {narrow.mean:.2f} above ({narrow.low:+.2f} to {narrow.high:+.2f}, five seeds) |" in page
    methods = {run["method"] for run in Results().final.records if (run["epochs"], run["target"]) == (60, QUARTER)}
    others = {name: above(name, 60, QUARTER) for name in methods - {"parent", "pcn-planner"}}
    assert [name for name, each in others.items() if not each.clears_zero] == ["pcn-planner-four-patterns"]
    assert f"| yes, by the mean | {min(each.mean for each in others.values()):.2f} or more above each" in page
    level = others["pcn-planner-four-patterns"]
    assert f"({level.mean:.2f} above, {level.low:+.2f} to {level.high:+.2f}, five seeds) |" in page
    assert f"| yes | {shown('pcn-planner', 182, NINTH)}, three seeds) |" in page
    assert f"| yes | {shown('pcn-planner-sized', 20, OF_CONV4)}, five seeds) |" in page


def test_the_aim_that_is_missed_is_missed_by_as_much_as_is_said() -> None:
    from peers.report import by_seed

    page, wide = said_on("docs/comparison.md"), above("parent", 182, QUARTER)
    assert f"| **no** | {-wide.mean:.2f} below ({wide.low:+.2f} to {wide.high:+.2f}, three seeds) |" in page
    assert f"**How far**: by {-wide.mean - 0.3:.2f}." in page
    ours, theirs = (by_seed(final_runs(name, 182, QUARTER)) for name in ("pcn-planner", "parent"))
    first, second, third = (f"{theirs[seed] - ours[seed]:.2f}" for seed in sorted(ours))
    assert f"The three seeds end {first}, {second} and {third} below the wide network" in page
    loss, of_narrow = (
        f"{statistics.fmean(run['last_loss'] for run in final_runs(name, 182, QUARTER)):.4f}"
        for name in ("pcn-planner", "narrow")
    )
    assert f"training loss ends at {loss}, the half-width network's at {of_narrow} (the wide one's is not" in page
    assert all(run.get("last_loss") is None for run in final_runs("parent", 182, QUARTER))
    long, short = (f"{-above('parent', epochs, NINTH).mean:.2f}" for epochs in (182, 60))
    assert f"the PCN is {long} below the wide network over 182 epochs, and {short} over 60." in page


def rows_of_ideas(head: str) -> list[list[str]]:
    """The rows of the table on the ideas for the planner that begins so; arms stand in backquotes."""
    text = (ROOT / "docs/trials.md").read_text(encoding="utf-8")
    rows = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    hedged = "tuned, patterns chosen, hedged"
    return [[cell.strip().replace("the hedged budget", hedged) for cell in row.strip("|").split("|")] for row in rows]


def test_ideas_for_the_planner_have_brought_what_is_said() -> None:
    import planner_search
    from peers.intervals import paired_difference
    from peers.report import by_seed
    from peers.results import RESULTS
    from records import Records

    records = Records(RESULTS / planner_search.RECORDS).records
    rows = rows_of_ideas("| idea | arm | beside |")
    assert len(rows) >= 20
    for _, arm, beside, epochs, seeds, difference, *_ in rows:
        mine, other = (
            by_seed(
                [run for run in records if (run["arm"], run["epochs"]) == (name.strip("`"), int(epochs))],
                "validation_accuracy",
            )
            for name in (arm, beside)
        )
        found = paired_difference(mine, other)
        assert found is not None, arm
        assert (seeds, difference) == (str(found.pairs), str(found)), arm


def test_arms_that_are_said_to_have_no_run_have_none() -> None:
    import planner_search
    from peers.arms import ARMS
    from peers.results import RESULTS
    from records import Records

    arms = [arm for _, cell in rows_of_ideas("| idea | arms without a run |") for arm in re.findall("`(.*?)`", cell)]
    assert len(arms) >= 15
    assert set(arms) <= set(ARMS)
    assert {each["arm"] for each in Records(RESULTS / planner_search.RECORDS).records}.isdisjoint(arms)


def test_what_performance_misses_is_missed_by_as_much_as_it_says() -> None:
    from peers.results import RESULTS

    found = json.loads((RESULTS / "step_time.json").read_text())
    steps = {(each["network"].removeprefix("wide_resnet20-"), each["batch"]): each for each in found["records"]}
    page = said_on("docs/performance.md")

    def beside_half(network: str, *, best: bool) -> tuple[str, ...]:
        """The share of the half-width network's step: of its best, which PCN1's run has, or block by block."""
        both = [(steps[network, batch], steps["pcn1" if best else network, batch]) for batch in (1024, 128)]
        return tuple(f"{each['pcn_ms'] / beside['narrow_ms']:.2f}" for each, beside in both)

    (large, small), blocks = beside_half("planned-flops", best=True), beside_half("planned-flops", best=False)
    best = f"takes {large} (1024) and {small} (128) of that network's best step"
    assert f"{best}, {blocks[0]} and {blocks[1]} where it is compiled block by block" in page
    assert f"`wide_resnet20-planned-flops` at {large} and {small} (of two runs each)" in page
    networks = {network for network, batch in steps if batch == 128 and (network, 1024) in steps and "x" not in network}
    of_parent = [name for name in networks if name.startswith(("pcn", "planned", "patterns", "budget"))]
    within = [name for name in of_parent if max(map(float, beside_half(name, best=True))) <= 1.15]
    assert sorted(within) == ["pcn1", "pcn2"]

    def shares(kernel: str, *, ours: bool = False) -> str:
        """The range over all sizes, or over those at which a kernel of ours is faster by more than noise."""
        rows = [each for each in found["kernels"] if each["kernel"] == kernel]
        of = [each["share_of_copy"] for each in rows if not ours or each["time_us"] < 0.95 * each["library_us"]]
        assert max(of) < 0.6
        return f"{100 * min(of):.0f} to {100 * max(of):.0f}%"

    kernels = "narrow_conv", "narrow_conv_input", "narrow_conv_weight"
    forward, of_input, of_weight = (shares(kernel) for kernel in kernels)
    backward = f"the gradient of the input at {of_input}, that of the weight at {of_weight}"
    assert f"the forward pass runs at {forward}, {backward}" in page
    forward, of_input, of_weight = (shares(kernel, ours=True) for kernel in kernels)
    assert f"ours have {forward}, {of_input} and {of_weight}." in page


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
    assert f"ends {below_ours} below the PCN. **Muon changes that**" in readme
    assert f"ends {below_narrow} nats per byte below a narrower one" in page
    assert f"and {above_wide} above the wide one. A narrow Llama" in page
    assert f"principal coordinates ends {below_ours} below the PCN" in page
    assert f"by {below_narrow} in the mean, and ends {above_wide} above the wide one" in page
    assert f"ends {below_ours} below the PCN and {apart(each.PARENT, each.NARROW_ROTATED)} below the wide Llama" in page
    assert f"so rewritten {apart(each.PARENT, each.ROTATED)} below itself" in page
    assert f"ends {apart(each.LOW_RANK, each.NARROW)} above the narrower Llama" in page
    assert f"ends {apart(each.LOW_RANK_STORED, each.PCN)} above the PCN" in page
    ours, wide, narrow = (apart(name, each.UNCENTRED[name]) for name in (each.PCN, each.ROTATED, each.NARROW_ROTATED))
    assert (
        f"PCN then ends {ours} lower, the wide Llama in its coordinates {wide} and the narrow one {narrow}: level"
        in page
    )
    muons = each.BY_MUON
    gained, lost = apart(each.NARROW, muons[each.NARROW]), apart(muons[each.PCN], muons[each.NARROW])
    assert f"narrow Llama ends {gained} lower than by AdamW, and the PCN {lost} above the narrow one" in readme
    assert f"by Muon the narrow Llama ends {gained} lower, and the PCN {lost} above it" in page
    below = apart(each.ROTATED, muons[each.NARROW])
    assert f"ends {gained} below itself by AdamW, and {below} below the wide one in all of its coordinates" in page
    wide = apart(muons[each.PCN], muons[each.PARENT])
    assert f"ends {lost} above the narrower Llama that trains as many, on every seed, and {wide} above the wide" in page
    either, above_narrow = apart(each.EITHER_SIDE, each.PCN), apart(each.EITHER_SIDE, each.NARROW)
    assert f"ends {either} above the PCN and {above_narrow} above the narrower Llama" in page


def test_compiling_gains_as_little_on_a_cpu_as_performance_says() -> None:
    from peers.results import RESULTS

    found = json.loads((RESULTS / "step_time_cpu.json").read_text())["ways"]
    ms = {(each["network"], each["role"], each["way"]): each["ms"] for each in found}
    more = {key[:2]: 100 * (ms[(*key[:2], "whole")] / ms[key] - 1) for key in ms if key[2] == "eager"}
    slower = [each for (_, role), each in more.items() if role in ("parent", "narrow")]
    faster = [-each for (_, role), each in more.items() if role == "pcn" and each < 0]
    gaining = [name for (name, role), each in more.items() if role == "pcn" and each < 0]
    assert min(slower) > 0
    assert sorted(gaining) == ["wide_mlp-pcn", "wide_resnet20-pcn1", "wide_resnet20-pcn2"]
    page = said_on("docs/performance.md")
    assert f"narrow networks are slower by it, by {min(slower):.0f} to {max(slower):.0f}%, and" in page
    assert f"and the wide MLP's PCN faster by {min(faster):.0f} to {max(faster):.0f}%." in page


def test_a_step_in_all_coordinates_takes_as_long_as_is_said() -> None:
    import coordinate_steps

    records = json.loads((coordinate_steps.RESULTS / "coordinate_steps.json").read_text())["records"]
    shares = [record["fastest_ms"] / record["plain_ms"] for record in records]
    said = f"for between {min(shares):.2f} and {max(shares):.2f} of a step's time"
    assert said in said_on("README.md")
    assert said in said_on("docs/comparison.md")
    factored = {f"{record['factored_ms'] / record['plain_ms']:.1f}" for record in records}
    assert factored <= {"1.5", "1.6"}
    assert f"its steps take {min(shares):.2f} to {max(shares):.2f} of their time, not 1.5" in said_on("docs/planner.md")


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
