"""Run the checks on random models over a range of seeds: `python tests/fuzz.py --start 0 --examples 10000`.

Every seed stands for a random model and a random request, and goes through one of the checks, which take turns. A run
that was stopped goes on with ``--start`` at the seed that it names. Failures are made small before they are shown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

from random_models.choices import Choices
from random_models.properties import PROPERTIES, Property
from random_models.shrink import shrink

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
BY_NAME = {check.__name__: check for check in PROPERTIES}


@dataclass(frozen=True)
class Result:
    """What one check made of one seed."""

    seed: int
    check: str
    outcome: str
    failure: str | None = None


def run_seed(seed: int, checks: list[str]) -> Result:
    name = checks[seed % len(checks)]
    choices = Choices.seeded(seed)
    try:
        return Result(seed, name, BY_NAME[name](choices))
    except Exception:
        small = shrink(partial(_fails, BY_NAME[name]), choices.taken)
        return Result(seed, name, "FAILED", f"{traceback.format_exc()}\nsmallest: Choices.replayed({small})")


def _fails(check: Property, taken: list[int]) -> bool:
    try:
        check(Choices.replayed(taken))
    except Exception:
        return True
    return False


def quiet_worker() -> None:
    """One thread, and warnings as in the tests: all are errors but those that pyproject.toml names."""
    torch.set_num_threads(1)
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    for setting in project["tool"]["pytest"]["ini_options"]["filterwarnings"]:
        action, _, rest = setting.partition(":")
        warnings.filterwarnings(action, message=rest.split(":")[0])


def results(seeds: range, checks: list[str], workers: int) -> Iterator[Result]:
    """Run the seeds in order, several at a time."""
    with multiprocessing.get_context("spawn").Pool(workers, quiet_worker) as pool:
        yield from pool.imap(partial(run_seed, checks=checks), seeds, chunksize=4)


def main() -> int:
    arguments = _parse()
    console = Console(highlight=False, soft_wrap=True)
    seeds = range(arguments.start, arguments.start + arguments.examples)
    outcomes: Counter[tuple[str, str]] = Counter()
    failures, began, done = 0, time.perf_counter(), 0
    try:
        for result in results(seeds, arguments.check or list(BY_NAME), arguments.workers):
            done += 1
            outcomes[result.check, result.outcome] += 1
            if result.failure is not None:
                failures += 1
                console.print(f"seed {result.seed}, {result.check}:\n{result.failure}", markup=False)
            if done % 500 == 0:
                console.print(f"{done} of {len(seeds)} models, {failures} failures, {_since(began)}")
    except KeyboardInterrupt:
        console.print(f"stopped: go on with --start {arguments.start + done}")
    console.print(
        f"seeds {seeds.start} to {seeds.start + done - 1}: {done} models, {failures} failures, {_since(began)}"
    )
    for (check, outcome), number in sorted(outcomes.items()):
        console.print(f"  {check:45} {outcome:30} {number:6}", markup=False)
    return 1 if failures or done < len(seeds) else 0


def _since(began: float) -> str:
    return f"{time.perf_counter() - began:.0f} s"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--examples", type=int, default=10_000, help="how many seeds")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--check", action="append", choices=list(BY_NAME), help="only this one; may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
