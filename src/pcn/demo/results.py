"""What the demo measures: runs, grouped by the kind of network."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from pcn.demo.diary import Diary
from pcn.demo.recipe import Recipe

PARENT, PCN, NARROWER = "parent", "PCN", "narrower"


@dataclass(frozen=True)
class Run:
    """One network trained once; accuracies in percent, FLOPs of one forward pass."""

    seed: int
    trainable: int
    total: int
    flops_per_sample: float
    validation_accuracy_percent: float
    test_accuracy_percent: float
    time_s: float


@dataclass(frozen=True)
class Switch:
    """What the first seed's switch looked like: the two tables, and the validation accuracy on both sides of it."""

    statistics: str
    plan: str
    accuracy_before_percent: float
    accuracy_after_percent: float
    time_s: float


@dataclass
class Comparison:
    """Every run of every kind of network, and what the first seed's PCN was like on its way."""

    recipe: Recipe
    runs: dict[str, list[Run]] = field(default_factory=lambda: {PARENT: [], PCN: [], NARROWER: []})
    switches: list[Switch] = field(default_factory=list)
    diary: Diary | None = None

    def values(self, network: str, number: str) -> list[float]:
        """Return one number of every run, by its field's name."""
        return [float(getattr(run, number)) for run in self.runs[network]]

    def mean(self, network: str, number: str) -> float:
        return statistics.fmean(self.values(network, number))

    def deviation(self, network: str, number: str) -> float | None:
        """Return the standard deviation over the seeds, None when there is one."""
        values = self.values(network, number)
        return statistics.stdev(values) if len(values) > 1 else None

    def report(self) -> dict[str, Any]:
        """Return the data of a report on the first seed's PCN."""
        if self.diary is None:
            raise ValueError("nothing was run")
        return self.diary.report(self.runs[PCN][0].test_accuracy_percent)

    def paired_difference(self) -> tuple[float, float | None]:
        """Return PCN minus narrower in test accuracy: the mean over the seeds and its standard error, if known."""
        pairs = zip(*(self.values(network, "test_accuracy_percent") for network in (PCN, NARROWER)), strict=True)
        differences = [small - narrower for small, narrower in pairs]
        several = len(differences) > 1
        error = statistics.stdev(differences) / len(differences) ** 0.5 if several else None
        return statistics.fmean(differences), error

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: the recipe, the mean of each number over the seeds, and every run."""
        numbers = [name for name in Run.__dataclass_fields__ if name != "seed"]
        networks = [
            {
                "network": network,
                **{name: self.mean(network, name) for name in numbers},
                "runs": [asdict(run) for run in runs],
            }
            for network, runs in self.runs.items()
        ]
        switches = [
            {"seed": run.seed, **_numbers(switch)} for run, switch in zip(self.runs[PCN], self.switches, strict=True)
        ]
        mean, error = self.paired_difference()
        return {
            "recipe": self.recipe.as_dict(),
            "threads": torch.get_num_threads(),
            "networks": networks,
            "switches": switches,
            "pcn_minus_narrower_percent": {"mean": mean, "standard_error": error},
        }


def _numbers(switch: Switch) -> dict[str, float]:
    return {name: value for name, value in asdict(switch).items() if isinstance(value, float)}
