"""``pcn demo``: the paper's four steps on real data, and one table."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from pcn.cli.command import Command, wrong_usage
from pcn.cli.destination import make_room_for_file
from pcn.cli.screen import Screen
from pcn.config import USUAL_RANK
from pcn.demo import Comparison, Recipe, compare, epochs_in_all
from pcn.demo.results import NARROWER, PARENT, PCN
from pcn.report import write_report

REPORT = Path("runs") / "demo" / "report.html"
COLUMNS = ("network", "trainable", "total", "FLOPs per sample", "test accuracy (%)", "seconds")
DESCRIBED = {PARENT: "parent, trained whole", PCN: "PCN, switched in training", NARROWER: "narrower, from scratch"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    recipe = Recipe()
    _whole_number(parser, "--epochs", recipe.epochs, "epochs in all")
    _whole_number(parser, "--switch-after", recipe.switch_after, "the epoch after which the parent becomes a PCN")
    _whole_number(parser, "--seeds", recipe.seeds, "how often everything is repeated, each time with another seed")
    _whole_number(parser, "--seed", recipe.first_seed, "the first seed")
    parser.add_argument(
        "--report", type=Path, default=REPORT, metavar="FILE", help=f"where the HTML page goes (default: {REPORT})"
    )


def _whole_number(parser: argparse.ArgumentParser, flag: str, default: int, what: str) -> None:
    parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{what} (default: {default})")


def _run(arguments: argparse.Namespace, screen: Screen) -> None:
    with wrong_usage():
        recipe = Recipe(arguments.epochs, arguments.switch_after, arguments.seeds, arguments.seed)
    make_room_for_file(arguments.report, "--report")
    torch.set_num_threads(1)  # at this size threads gain nothing, and wait long for each other on a busy machine
    several = recipe.seeds > 1
    split = f"split anew for each of {recipe.seeds} seeds" if several else f"split by seed {recipe.first_seed}"
    screen.text(
        f"Digits: 897 training, 300 validation and 600 test images, {split}.\n"
        f"Every network trains for {recipe.epochs} epochs on one CPU thread; "
        f"the PCN is the parent until epoch {recipe.switch_after}."
    )
    with screen.progress(epochs_in_all(recipe)) as bar:
        comparison = compare(recipe, report=lambda name: bar.update(bar.task_ids[0], advance=1, description=name))
    _show_switch(comparison, screen)
    _show_table(comparison, screen)
    page = write_report(arguments.report, comparison.report())
    screen.text(f"\nThe report on seed {recipe.first_seed}, with a slider for the threshold: {page}")
    screen.result({**comparison.as_dict(), "report": str(page)})


def _show_switch(comparison: Comparison, screen: Screen) -> None:
    first = comparison.switches[0]
    screen.heading(f"Look: what the layers read (seed {comparison.recipe.first_seed})")
    screen.text(first.statistics)
    screen.heading(f"Plan: {USUAL_RANK} for every layer")
    screen.text(first.plan)
    screen.heading("Switch")
    screen.text(
        f"{first.time_s:.2f} s for all three; validation accuracy {first.accuracy_before_percent:.1f}% before, "
        f"{first.accuracy_after_percent:.1f}% right after."
    )


def _show_table(comparison: Comparison, screen: Screen) -> None:
    recipe = comparison.recipe
    over = f"mean ± standard deviation over {recipe.seeds} seeds" if recipe.seeds > 1 else f"seed {recipe.first_seed}"
    screen.heading(f"After {recipe.epochs} epochs ({over})")
    screen.table(COLUMNS, [_row(comparison, network) for network in (PARENT, PCN, NARROWER)])
    mean, error = comparison.paired_difference()
    uncertainty = "one seed, so its error is unknown" if error is None else f"standard error {error:.2f}"
    screen.text(f"\nPCN minus narrower on the same splits: {mean:+.2f} points of test accuracy ({uncertainty}).")


def _row(comparison: Comparison, network: str) -> list[object]:
    counts = [round(comparison.mean(network, number)) for number in ("trainable", "total", "flops_per_sample")]
    accuracy = comparison.mean(network, "test_accuracy_percent")
    deviation = comparison.deviation(network, "test_accuracy_percent")
    spread = "" if deviation is None else f" ± {deviation:.2f}"
    seconds = comparison.mean(network, "time_s")
    return [DESCRIBED[network], *counts, f"{accuracy:.2f}{spread}", f"{seconds:.1f}"]


COMMAND = Command(
    name="demo",
    description="Train a wide network for a few epochs, look at what its layers read, plan, switch, and train on.\n"
    "Beside it: the same network trained whole, and a narrower one of the same trainable size.",
    examples=("pcn demo", "pcn demo --epochs 10 --switch-after 2 --seeds 1", "pcn demo --json > demo.json"),
    add_arguments=_add_arguments,
    run=_run,
)
