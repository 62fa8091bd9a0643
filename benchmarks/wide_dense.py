"""A wide dense network on CIFAR-10: what whole runs take of it, of its PCN within a budget, and of the alternatives.

    python benchmarks/wide_dense.py --data DIR              # the grid, then five seeds: two hours on two cores
    python benchmarks/wide_dense.py --data DIR --seeds --shared     # the grid alone, beside other work
    python benchmarks/wide_dense.py --table

Three hidden layers of 1,024 with ReLU read the pixels; Adam, cosine, 12 epochs. The PCN switches after epoch 1 and then
trains a tenth of the parameters. Beside it stand the same budget with coordinates that are not sized for Adam, in all
layers or in the one that reads the pixels; both along random directions, and before any training; a network half as
wide that becomes a PCN of that size; and networks that train as many numbers, or store and multiply as many as the PCN
with its bases: narrower ones from scratch, and the wide one with its weights factorised by SVD after epoch 1, all but
the last layer's, to the same share of the full rank. What the coordinates give by themselves is shown by a narrow
network that is rewritten in all of its sized principal coordinates, and by the wide one in all of its own before any
training, which is in the grid alone, as it takes twice as long as the wide network. Each has the best of the learning
rates, by the validation split of a seed of its own. Nothing is compiled. Runs whose seconds are kept have the machine
to themselves, one after another; those of --shared have none, and the table leaves them out.
Results: benchmarks/results/wide_dense.json
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peers import RESULTS, folder  # which finds the experiments' modules as well

# isort: split
from grid_rates import GRID_SEED, best_rate, find
from grouping import mean
from markdown_tables import markdown
from pcn.costs.count import flops_per_sample
from pcn.training import Settings, Trainer
from pcn.training.meter import training_bytes
from peers.factors import Layer, all_layers
from peers.svd import QuarterRank
from peers.trainer import PeerTrainer
from records import Record, Records
from runs import Job, run_jobs

EPOCHS, SWITCH = 12, 1
WIDTH, PIXELS, CLASSES = 1024, 3 * 32 * 32, 10
SHARE = 0.1  # of the parameters, that the PCN trains
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
PARENT = "wide"
PCN, UNSIZED = "PCN within a budget", "PCN, not sized for Adam"
RANDOM, RANDOM_UNSIZED = "PCN, random directions", "PCN, random directions, not sized for Adam"
AT_ONCE, AT_ONCE_UNSIZED = "PCN, before any training", "PCN, before any training, not sized for Adam"
FIRST_UNSIZED = "PCN, its first layer not sized for Adam"
AT_ONCE_FIRST_UNSIZED = "PCN, before any training, its first layer not sized for Adam"
HALF = "PCN of a network half as wide"
NARROW, NARROW_STORED = "narrow, as many trained", "narrow, as many stored"
NARROW_ROTATED = "narrow, as many trained, in sized principal coordinates"
LOW_RANK, LOW_RANK_STORED = "low rank by SVD, as many trained", "low rank by SVD, as many stored"
ROTATED = "wide, in principal coordinates"
AS_STORED = (NARROW_STORED, LOW_RANK_STORED)  # as large as the PCN of their seed, which therefore comes first
NETWORKS = (
    *(PARENT, PCN, UNSIZED, FIRST_UNSIZED, RANDOM, RANDOM_UNSIZED),
    *(AT_ONCE, AT_ONCE_UNSIZED, AT_ONCE_FIRST_UNSIZED, HALF),
    *(NARROW, NARROW_ROTATED, NARROW_STORED, LOW_RANK, LOW_RANK_STORED),
)
KEPT = (
    *(
        "network",
        "seed",
        "epochs",
        "switch_epoch",
        "learning_rate",
        "trainable_params",
        "total_params",
        "flops_per_sample",
    ),
    *("validation_accuracy", "test_accuracy", "seconds", "epoch_seconds", "switch_seconds"),
    *("training_bytes", "threads", "commit"),
)


def network(width: int = WIDTH) -> nn.Sequential:
    def hidden(inputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, width), nn.ReLU()]

    return nn.Sequential(nn.Flatten(), *hidden(PIXELS), *hidden(width), *hidden(width), nn.Linear(width, CLASSES))


def parameters(width: int) -> int:
    """How many such a network has.

    >>> parameters(8) == sum(each.numel() for each in network(8).parameters())
    True
    """
    return (PIXELS + 1) * width + 2 * (width + 1) * width + (width + 1) * CLASSES


def narrow_width(limit: float) -> int:
    """The widest that has no more parameters."""
    return max(width for width in range(1, WIDTH + 1) if parameters(width) <= limit)


class DenseRank(QuarterRank):
    """The same share of the full rank in every layer but the last: the first one, of the pixels, is the largest."""

    def layers(self, model: nn.Module) -> list[tuple[str, Layer]]:
        return all_layers(model)[:-1]


def job(name: str, seed: int, rate: float, data: Path, stored: int | None = None) -> Job:
    """A run; of a network that is as large as the PCN, ``stored`` is how many numbers that stores."""
    limit = int(SHARE * parameters(WIDTH)) if stored is None else stored
    narrow = name in (NARROW, NARROW_STORED, NARROW_ROTATED)
    width = narrow_width(limit) if narrow else WIDTH // 2 if name == HALF else WIDTH
    settings = Settings(
        model="wide_dense:network",
        model_options={"width": width},
        data="cifar10",
        data_dir=str(data),
        augment="crop-flip",
        epochs=EPOCHS,
        batch=128,
        seed=seed,
        optimizer="adam",
        learning_rate=rate,
        schedule="cosine",
        measure_every=0,
        **switching(name),
    )
    return Job(name, settings, each_epoch=clock, at_the_end=sizes, summary=kept, make_trainer=trainer_of(name, limit))


def switching(name: str) -> dict[str, Any]:
    """What the settings say of the switch; that of low rank is one of its own."""
    if name in (PARENT, NARROW, NARROW_STORED):
        return {}
    after, unsized = {"switch_at": str(SWITCH)}, {"sized_for": "sgd"}
    before, first_unsized = {"switch_at": "0"}, {"layers": {"1": unsized}}  # which reads the pixels
    budget = {"params": int(SHARE * parameters(WIDTH))}
    rotated = {"rank": "1.0", "skip_larger": False}
    return {
        PCN: {**after, **budget},
        UNSIZED: {**after, **budget, **unsized},
        FIRST_UNSIZED: {**after, **budget, **first_unsized},
        RANDOM: {**after, **budget, "basis": "random"},
        RANDOM_UNSIZED: {**after, **budget, "basis": "random", **unsized},
        AT_ONCE: {**before, **budget},
        AT_ONCE_UNSIZED: {**before, **budget, **unsized},
        AT_ONCE_FIRST_UNSIZED: {**before, **budget, **first_unsized},
        HALF: {**after, **budget},
        NARROW_ROTATED: {**after, **rotated, "sized_for": "adam"},
        ROTATED: {**before, **rotated, **unsized},
        LOW_RANK: after,
        LOW_RANK_STORED: after,
    }[name]


def trainer_of(name: str, limit: int) -> Callable[..., Trainer]:
    """The training loop, with another switch than the library's where SVD is compared."""
    if name in (LOW_RANK, LOW_RANK_STORED):
        return partial(PeerTrainer, make_switch=partial(DenseRank, target=limit))
    return Trainer


def clock(trainer: Trainer) -> Record:
    return {"train_seconds": trainer.progress.train_seconds}


def sizes(trainer: Trainer) -> Record:
    return {
        "learning_rate": trainer.settings.learning_rate,
        "flops_per_sample": flops_per_sample(trainer.model, next(iter(trainer.calibration()))[:1]),
        "training_bytes": training_bytes(trainer.model, trainer.optimizer),
        "threads": torch.get_num_threads(),
    }


def kept(record: Record) -> Record:
    """What is recorded of a run: all of its seconds, those of an epoch behind the switch, no test set of the grid."""
    whole = {**record, "seconds": None, "epoch_seconds": None}
    if record["train_seconds"] is not None:  # it had the machine to itself
        ends = [epoch["train_seconds"] for epoch in record["curve"]][SWITCH:]
        whole["seconds"] = sum(record[name] or 0.0 for name in ("train_seconds", "setup_seconds", "switch_seconds"))
        whole["epoch_seconds"] = statistics.median(after - before for before, after in pairwise(ends))
    if record["seed"] == GRID_SEED:
        whole["test_accuracy"] = None
    return {name: whole[name] for name in KEPT}


def do(records: Records, seeds: Sequence[int], options: argparse.Namespace) -> None:
    """What is missing, each network once the one is there that it depends on."""
    for name, seed, rate in wanted(records, seeds):
        if find(records.records, name, seed, rate) is None:
            run_jobs([job(name, seed, rate, options.data, stored(records, name, seed))], records, options)


def wanted(records: Records, seeds: Sequence[int]) -> Iterator[tuple[str, int, float]]:
    """The grid first, then seed by seed at the rate that it has chosen by then, last what is in the grid alone."""
    yield from ((name, GRID_SEED, rate) for name, rate in product(NETWORKS, RATES))
    yield from ((name, seed, best(records.records, name)) for seed, name in product(seeds, NETWORKS))
    yield from ((ROTATED, GRID_SEED, rate) for rate in RATES)


def stored(records: Records, name: str, seed: int) -> int | None:
    """How many numbers the PCN of a seed stores, for the network that is as large."""
    if name not in AS_STORED:
        return None
    found = next(record for record in records.records if (record["network"], record["seed"]) == (PCN, seed))
    return int(found["total_params"])


def best(records: Sequence[Record], name: str) -> float:
    return best_rate(records, name, RATES, "validation_accuracy")


def finals(records: Sequence[Record]) -> list[Record]:
    """The runs at the rate that the grid has chosen, by seed; those at others were made when it was smaller."""
    rates = {name: best(records, name) for name in NETWORKS}
    found = (r for r in records if r["seed"] != GRID_SEED and r["learning_rate"] == rates[r["network"]])
    return sorted(found, key=lambda record: record["seed"])


def table(records: Sequence[Record]) -> str:
    """The means over seeds, and the differences from the network that trains as many parameters, seed by seed."""
    final = finals(records)
    narrow = {record["seed"]: record["test_accuracy"] for record in final if record["network"] == NARROW}
    head = ["network", "rate", "trained", "stored", "MFLOPs", "test accuracy (%)", "minus narrow, seed by seed"]
    head += ["seconds", "an epoch, s", "weights, gradients, optimizer (MB)"]
    rows = []
    for name in NETWORKS:
        runs = [record for record in final if record["network"] == name]
        if runs:
            apart = [f"{run['test_accuracy'] - narrow[run['seed']]:+.2f}" for run in runs if run["seed"] in narrow]
            counts = [f"{mean(runs, key):,.0f}" for key in ("trainable_params", "total_params")]
            accuracy = f"{mean(runs, 'test_accuracy'):.2f}", "" if name == NARROW else ", ".join(apart)
            alone = [run for run in runs if run["seconds"] is not None]
            times = (f"{mean(alone, 'seconds'):.0f}", f"{mean(alone, 'epoch_seconds'):.2f}") if alone else ("", "")
            flops, held = f"{mean(runs, 'flops_per_sample') / 1e6:.2f}", f"{mean(runs, 'training_bytes') / 1e6:.0f}"
            rows.append([name, f"{runs[0]['learning_rate']:g}", *counts, flops, *accuracy, *times, held])
    return markdown(head, rows)


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results)
    if options.table:
        print(table(records.records))
    elif options.data is None:
        raise SystemExit("give --data, the folder with CIFAR-10's binary version, or --table")
    else:
        do(records, options.seeds, options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder, help="folder with CIFAR-10's binary version")
    parser.add_argument("--seeds", nargs="*", type=int, default=range(5), metavar="SEED", help="none: the grid alone")
    parser.add_argument("--shared", action="store_true", help="other work is done beside, so times are not kept")
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS", help="for each run")
    parser.add_argument("--results", type=Path, default=RESULTS / "wide_dense.json")
    parser.set_defaults(together=1)
    return parser


if __name__ == "__main__":
    main()
