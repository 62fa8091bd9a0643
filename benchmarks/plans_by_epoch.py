"""What the planner would choose for one network as it trains: do early plans fit late features?

    python benchmarks/plans_by_epoch.py --data DIR                       # WideResNet-20, 60 epochs, two seeds
    python benchmarks/plans_by_epoch.py --table                          # the share of directions kept, stage by stage

After some epochs of the parent, which trains on untouched and never switches, a plan is made for 1,094,154 trained
parameters as a switch would make it. Plans are added to benchmarks/results/plans_by_epoch.json as they come; the test
set stays unread.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

import pcn
from markdown_tables import markdown
from pcn.training import Settings, Trainer, load_data, world
from pcn.training.step import training_dtype
from peers import RESULTS
from peers.arms import TUNED
from peers.one_run import UNWATCHED
from peers.parents import PARENTS
from peers.trainer import Unread
from records import Record, Records, commit_at_start

RESULT = RESULTS / "plans_by_epoch.json"
PARENT, TARGET = "wide_resnet20", 1_094_154
STAGES = ("stage1", "stage2", "stage3")
EPOCHS, LOOKS = 60, (1, 2, 5, 10, 20, 29, 31, 40, 60)  # the rate drops after epochs 30 and 45


def main() -> None:
    given = arguments().parse_args()
    records = Records(given.out)
    if given.table:
        print(table(records.records))
        return
    if given.data is None:
        raise SystemExit("give --data, the folder with CIFAR-10's binary version, or --table")
    for seed in given.seeds:
        looks = {scaled(look, given.epochs) for look in LOOKS}
        missing = {look for look in looks if not records.has(seed=seed, epochs=given.epochs, epoch=look)}
        if missing:
            settings = replace(PARENTS[PARENT].recipe(seed, given.epochs, given.data), **TUNED, **UNWATCHED)
            watch(replace(settings, epochs=max(missing)), missing, {"seed": seed, "epochs": given.epochs}, records)


def scaled(epoch: int, epochs: int) -> int:
    """An epoch of a run of 60, in one of another length.

    >>> scaled(60, 6), scaled(5, 6)
    (6, 1)
    """
    return max(1, round(epoch * epochs / EPOCHS))


def watch(settings: Settings, looks: set[int], run: Record, records: Records) -> None:
    """Train the parent and plan after the epochs that are asked for."""

    def tell(record: Record) -> None:
        if record["event"] == "epoch" and record["epoch"] in looks:
            epoch, accuracy = record["epoch"], record["validation_accuracy"]
            records.add({**run, "epoch": epoch, "validation_accuracy": accuracy, **planned(trainer), **origin})
            print(f"seed {settings.seed}, epoch {epoch}: {accuracy:.2f}%", flush=True)

    with world() as here:
        origin = {"commit": commit_at_start(), "device": str(here.device)}
        data = Unread(load_data(settings, here.device, training_dtype(here.device)))
        trainer = Trainer(settings, data, world=here, compiled=torch.cuda.is_available(), tell=tell)  # type: ignore[arg-type]
        trainer.run()


def planned(trainer: Trainer) -> Record:
    """What a switch would keep of every layer's input now."""
    stats = pcn.analyze(trainer.model, trainer.calibration(), mode="batch")
    plan = pcn.make_plan(trainer.model, stats, pcn.Budget(params=TARGET, worth=pcn.Response(), patterns=False))
    return {
        "widths": {layer.name: layer.in_features for layer in plan.layers.values()},
        "ranks": {layer.name: layer.rank or layer.in_features for layer in plan.layers.values()},
    }


def table(records: Sequence[Record]) -> str:
    """The share of all directions that is kept, stage by stage, epoch by epoch, on average of seeds and layers."""
    rows = []
    for epoch in sorted({record["epoch"] for record in records}):
        found = [record for record in records if record["epoch"] == epoch]
        shares = [f"{100 * fmean(share(record, stage) for record in found):.0f}" for stage in STAGES]
        accuracy = fmean(record["validation_accuracy"] for record in found)
        rows.append([str(epoch), str(len(found)), f"{accuracy:.2f}", *shares])
    head = ("epoch", "seeds", "parent's validation (%)", *(f"directions kept in {stage} (%)" for stage in STAGES))
    return markdown(head, rows)


def share(record: Record, stage: str) -> float:
    """The mean, over the 3x3 convolutions of a stage, of the share of directions that they keep."""
    names = [name for name in record["ranks"] if name.startswith(stage) and "shortcut" not in name]
    return fmean(record["ranks"][name] / record["widths"][name] for name in names)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10's binary version")
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1), metavar="SEED")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="another length scales the whole schedule")
    parser.add_argument("--table", action="store_true", help="print the results")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser


if __name__ == "__main__":
    main()
