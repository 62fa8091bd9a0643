"""From flags to statistics and a plan: what ``pcn analyze``, ``plan`` and ``compress`` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from pcn.cli.batches import add_batches, read_batches, warn_of_noise
from pcn.cli.command import WrongUsageError, wrong_usage
from pcn.cli.screen import Screen
from pcn.cli.settings_flags import LOOK, NETWORK, STEP, add_some_settings
from pcn.cli.subject import Subject, add_subject
from pcn.cli.wording import advising_flags, check_plain
from pcn.errors import FileError, suggest
from pcn.layers import layer_type, unwrap
from pcn.planner.budget import Budget
from pcn.planner.measured import Measured
from pcn.planner.within import measure_first, plan_within
from pcn.plans.making import make_plan
from pcn.plans.plan import Plan
from pcn.statistics import Statistics, analyze
from pcn.statistics.choice import check_numbers
from pcn.statistics.statistics import LayerShape
from pcn.training.requests import analysis_options, pcn_config, requested
from pcn.training.step import autocast


def add_look(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the model, of batches or statistics from a file, and of how to look."""
    add_subject(parser)
    one = add_batches(parser)
    one.add_argument("--stats", type=Path, metavar="FILE", help="statistics that pcn analyze --out wrote")
    group = parser.add_argument_group("how to look")
    add_some_settings(group, LOOK)
    group.add_argument("--max-rank", type=int, metavar="N", help="directions to find in inputs too wide for more")


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what to keep."""
    add_some_settings(parser.add_argument_group("what to keep"), NETWORK)
    add_some_settings(parser.add_argument_group("the training step that --step-ms and --memory-mib are about"), STEP)


@dataclass(frozen=True)
class Looked:
    """What the layers read, the batches that it was seen on (none with statistics from a file), what a step takes."""

    stats: Statistics
    batches: Sequence[Any] = ()
    measured: Measured | None = None


def look(arguments: argparse.Namespace, subject: Subject, screen: Screen, *, gradients: bool = False) -> Looked:
    """Measure what the layers read, with gradients where these or the settings' basis need them, or read a file."""
    check_plain(arguments, subject)
    if arguments.stats is not None:
        return Looked(_saved(arguments.stats, subject))
    with wrong_usage():
        check_numbers(max_rank=arguments.max_rank)
    config = pcn_config(subject.settings)
    batches = read_batches(arguments, subject)
    warn_of_noise(arguments, screen)
    options = analysis_options(subject.settings, config) | {"max_rank": arguments.max_rank, "exclude": config.exclude}
    options["gradients"] |= gradients
    subject.model.train(subject.settings.analysis_mode == "train")
    with advising_flags(arguments, subject), screen.progress(len(batches), "looking") as bar:
        measured = _costs(subject, batches)  # a budget that cannot be met is refused before anything else is done
        watched = _Watched(batches, lambda done: bar.update(bar.task_ids[0], completed=done))
        return Looked(analyze(subject.model, watched, **options), batches, measured)


def _costs(subject: Subject, batches: list[Any]) -> Measured | None:
    """What a step takes as ``pcn train`` would run it, where a budget asks."""
    settings = subject.settings
    wish = requested(settings) if settings.has_budget else None
    if not isinstance(wish, Budget) or not wish.measures:
        return None
    with autocast(subject.device):
        return measure_first(subject.model, next(iter(batches), None), wish)


def plan_for(subject: Subject, looked: Looked) -> Plan:
    """Decide what to keep, within the budget where there is one."""
    wish = requested(subject.settings)
    if not isinstance(wish, Budget):
        return make_plan(subject.model, looked.stats, wish)
    if wish.needs_batches and not looked.batches:
        raise WrongUsageError(f"--worth {subject.settings.worth} runs the model: give batches in place of --stats")
    return plan_within(subject.model, looked.stats, wish, batches=looked.batches, measured=looked.measured)


class _Watched(Sequence[Any]):
    """Batches that say how many have gone through; they may go through twice."""

    def __init__(self, batches: list[Any], tell: Callable[[int], None]) -> None:
        self._batches, self._tell = batches, tell

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: Any) -> Any:
        return self._batches[index]

    def __iter__(self) -> Iterator[Any]:
        for done, batch in enumerate(self._batches, start=1):
            yield batch
            self._tell(done)


def _saved(path: Path, subject: Subject) -> Statistics:
    """Read statistics, and see that they are of this model."""
    stats = Statistics.load(path)
    modules = dict(unwrap(subject.model).named_modules())
    for name, shape in stats.shapes.items():
        if name not in modules:
            raise FileError(f"{path} is about another model: it has {name!r}, this one not{suggest(name, modules)}")
        if layer_type(modules[name]) is None:
            kind = type(modules[name]).__name__
            raise FileError(
                f"{path} is about another model: {name!r} is no such layer here, but {kind}; measure this one anew"
            )
        if LayerShape.of(modules[name]) != shape:
            raise FileError(f"{path} is about a model in which {name!r} has another shape; measure this one anew")
    if stats.example is not None:
        inputs = tree_map_only(Tensor, lambda tensor: tensor.to(subject.device), stats.example.inputs)
        stats.example = stats.example.with_inputs(inputs)
    return stats
