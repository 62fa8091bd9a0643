"""Ideas for the switch against what it does by default, cheaply: small networks on a CPU, the validation split only.

    python benchmarks/rewriting_trials.py --data DIR                  # all arms, three seeds: an hour on a free core
    python benchmarks/rewriting_trials.py --data DIR --arms "balanced directions" "fade over 3 epochs"
    python benchmarks/rewriting_trials.py --table

An arm is a line of ARMS: a name, and what it changes in the first, which is a budget with nothing else asked. Two
networks read CIFAR-10. The wide dense one of wide_dense.py, trained by Adam at the rate that its grid chose, switches
after epoch 1 of 8 and then trains a tenth of its parameters. Four convolutions with batch norm, those of
experiments/sized_for_adam.py, see 10,000 of the images, trained by SGD with momentum and weight decay; they switch
after epoch 2 of 12 and then train a quarter. Runs of one seed fork from one state before the switch, which the first to
get there leaves in the folder for work. Arms of FIRST come first, for every seed. No run reads the test set. Other work
is done beside, so that no seconds are kept.
Results: benchmarks/results/rewriting_trials.json
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from peers import RESULTS, folder  # which finds the experiments' modules as well

# isort: split
import wide_dense
from grouping import mean
from markdown_tables import markdown
from pcn.plans.plan import Plan
from pcn.training import Data, Settings
from pcn.training.data import ImageData
from peers.intervals import Difference, paired_difference
from peers.late_changes import TwoCuts
from peers.trainer import MakeSwitch, PeerTrainer, Unread
from records import Record, Records, commit_at_start
from runs import Job, run_jobs

DENSE, CONVOLUTIONS = "wide dense, Adam", "convolutions, SGD"
SEEDS = (0, 1, 2)
DEFAULT = "default"
KEPT = (
    *("network", "arm", "seed", "epochs", "switch_epoch", "trainable_params", "total_params"),
    *("validation_before_switch", "validation_after_switch", "validation_accuracy", "train_loss", "commit"),
)


@dataclass(frozen=True)
class Network:
    """What is trained, and when it switches; of how many training images, None for all."""

    settings: Callable[[int, Path], Settings]
    switch_after: int
    images: int | None = None


class Forked(TwoCuts):
    """Two cuts, from a state that a run with the usual switch has left."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({"changed": False, **state})


@dataclass(frozen=True)
class Arm:
    """What differs from the default: settings, the switch, or whether weights decay when it has come."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    networks: tuple[str, ...] = (DENSE, CONVOLUTIONS)
    switch: MakeSwitch | None = None
    decays: bool = True


def dense(seed: int, data: Path) -> Settings:
    """The PCN of wide_dense.py, over fewer epochs."""
    return replace(wide_dense.job(wide_dense.PCN, seed, 3e-4, data).settings, epochs=8)


def convolutions(seed: int, data: Path) -> Settings:
    """By SGD at a rate that does as well as its double on a seed of its own."""
    return Settings(
        model="sized_for_adam:convolutions",
        data="cifar10",
        data_dir=str(data),
        augment="crop-flip",
        epochs=12,
        batch=128,
        seed=seed,
        optimizer="sgd",
        learning_rate=0.05,
        weight_decay=5e-4,
        schedule="cosine",
        measure_every=0,
        switch_at="2",
        params=0.25,
    )


NETWORKS = {DENSE: Network(dense, wide_dense.SWITCH), CONVOLUTIONS: Network(convolutions, 2, images=10_000)}
ONE = (CONVOLUTIONS,)
ARMS = {
    DEFAULT: Arm(),
    "balanced directions": Arm({"basis": "balanced"}),
    "precondition 1/4": Arm({"precondition": 0.25}, ONE),
    "precondition 1/2": Arm({"precondition": 0.5}, ONE),
    "fresh optimizer": Arm({"carry_state": False}, ONE),
    "fresh optimizer without decay": Arm({"carry_state": False}, ONE, decays=False),
    "fade over 3 epochs": Arm({"fade_epochs": 3.0}),
    "batch norm recalibrated": Arm({"recalibrate": True}, ONE),
    "two-sided": Arm({"two_sided": True}),
    "fade over 1 epoch": Arm({"fade_epochs": 1.0}),
    "precondition 0": Arm({"precondition": 0.0}, ONE),
    "analysed in eval mode": Arm({"analysis_mode": "eval"}, ONE),
    "response directions": Arm({"basis": "response"}),
    "random directions": Arm({"basis": "random"}, ONE),  # the dense network's are among the runs of wide_dense.py
    "worth: taylor": Arm({"worth": "taylor"}),
    "basis trained": Arm({"train_basis": True}),
    "two cuts, half first": Arm(switch=partial(Forked, first=0.5, again_at=8)),
}
FIRST = tuple(ARMS)[: tuple(ARMS).index("two-sided") + 1]


class Trial(PeerTrainer):
    """Trains on a part of the images, never reads the test set, and may end the weight decay at the switch."""

    def __init__(
        self, settings: Settings, data: Data, *arguments: Any, images: int | None, decays: bool, **keywords: Any
    ) -> None:
        if images is not None:
            assert isinstance(data, ImageData)
            data = replace(data, train=data.train.take(torch.arange(images)))
        self.decays = decays
        super().__init__(settings, Unread(data), *arguments, **keywords)

    def switched(self, plan: Plan) -> None:
        super().switched(plan)
        if not self.decays:
            for group in self.optimizer.param_groups:
                group["weight_decay"] = 0.0


def job(name: str, arm: str, seed: int, options: argparse.Namespace) -> Job:
    network, tried = NETWORKS[name], ARMS[arm]
    settings = replace(network.settings(seed, options.data), **tried.changes)
    trunk = f"{name}-{seed}-of-{settings.epochs}-{commit_at_start()}.pt".replace(", ", "-").replace(" ", "-")
    return Job(
        name,
        settings,
        trunk=options.work / trunk,
        trunk_epoch=network.switch_after,
        summary=partial(kept, arm),
        make_trainer=partial(Trial, images=network.images, decays=tried.decays, make_switch=tried.switch),
    )


def kept(arm: str, record: Record) -> Record:
    """What is recorded of a run: no seconds, and no test accuracy, for which the validation split has stood in."""
    whole = {**record, "arm": arm}
    return {name: whole[name] for name in KEPT}


def wanted(arms: Sequence[str], seeds: Sequence[int], networks: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Network, arm and seed of every run: those of FIRST on every seed before all others."""
    for group in ([arm for arm in arms if arm in FIRST], [arm for arm in arms if arm not in FIRST]):
        for seed, name, arm in product(seeds, networks, group):
            if name in ARMS[arm].networks:
                yield name, arm, seed


def do(records: Records, options: argparse.Namespace) -> None:
    """The runs that are missing."""
    missing = (
        (name, arm, seed)
        for name, arm, seed in wanted(options.arms, options.seeds, options.networks)
        if not records.has(network=name, arm=arm, seed=seed)
    )
    run_jobs([job(*each, options) for each in missing], records, options)


def accuracies(records: Sequence[Record], name: str, arm: str) -> dict[int, float]:
    """The validation accuracies of an arm by seed."""
    runs = [record for record in records if (record["network"], record["arm"]) == (name, arm)]
    return {run["seed"]: run["validation_accuracy"] for run in sorted(runs, key=lambda run: run["seed"])}


def table(records: Sequence[Record]) -> str:
    """Every arm beside the default of its network: seed by seed, and the mean with its 95% interval."""
    head = [
        "network",
        "arm",
        "trained",
        "validation accuracy (%)",
        "minus default, seed by seed",
        "mean ± 95%",
        "seeds",
    ]
    rows = []
    for name, arm in product(NETWORKS, ARMS):
        runs = [record for record in records if (record["network"], record["arm"]) == (name, arm)]
        ours, theirs = (accuracies(records, name, each) for each in (arm, DEFAULT))
        if not runs or not theirs:
            continue
        apart = ", ".join(f"{ours[seed] - theirs[seed]:+.2f}" for seed in ours if seed in theirs)
        sizes = f"{mean(runs, 'trainable_params'):,.0f}", f"{mean(runs, 'validation_accuracy'):.2f}"
        found = ("", "") if arm == DEFAULT else (apart, shown(paired_difference(ours, theirs)))
        rows.append([name, arm, *sizes, *found, str(len(runs))])
    return markdown(head, rows)


def shown(apart: Difference | None) -> str:
    """A mean and half of its interval, marked where that clears zero.

    >>> shown(Difference(0.5, 0.2, 3)), shown(Difference(0.1, 0.2, 3)), shown(Difference(0.5, None, 1)), shown(None)
    ('**+0.50** ± 0.20', '+0.10 ± 0.20', '+0.50', '')
    """
    if apart is None:
        return ""
    mean = f"**{apart.mean:+.2f}**" if apart.half is not None and apart.clears_zero else f"{apart.mean:+.2f}"
    return mean if apart.half is None else f"{mean} ± {apart.half:.2f}"


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results)
    if options.table:
        print(table(records.records))
    elif options.data is None:
        raise SystemExit("give --data, the folder with CIFAR-10's binary version, or --table")
    else:
        do(records, options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder, help="folder with CIFAR-10's binary version")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), metavar="SEED")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS", help="for all runs")
    parser.add_argument("--work", type=Path, default=Path("runs/rewriting_trials"), help="for states to fork from")
    parser.add_argument("--results", type=Path, default=RESULTS / "rewriting_trials.json")
    parser.set_defaults(together=1, shared=True)
    return parser


if __name__ == "__main__":
    main()
