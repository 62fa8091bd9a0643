"""What it costs to look at a network in eval mode while batch norm's running statistics lag behind.

    python experiments/lagging_statistics.py --data DIR                # three seeds, a quarter of an hour on one core

WideResNet-20 of half the width on 6,000 of CIFAR-10's images at half their size, 10 epochs, switched after the second
to a quarter of its parameters. The authors' batch norm takes a thousand steps to follow the network. For each seed one
run looks at what the layers read in eval mode, one with the batches' own statistics, and a network of half the width
is trained beside them. At the end running statistics are measured anew, so that they do not count in the test
accuracies: these are read again after that, and validation accuracies are still those of statistics that lag. Nothing
is chosen by the first reading, which is not recorded.
Results: experiments/results/lagging_statistics.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import pcn
from pcn.training import Settings, Trainer
from pcn.training.data import ImageData
from pcn.training.evaluation import accuracy_percent
from pcn.training.images import Images, Scale, cropped_and_flipped
from pcn.training.sources import cifar10
from records import RESULTS, Record, Records
from runs import Job, add_run_arguments, run_jobs

EPOCHS, SWITCH, WIDTH = 10, 2, 32
TRAINED, HELD_OUT = 6_000, 1_000
HALF = "half the width"
ARMS: dict[str, dict[str, Any]] = {
    "looked at in eval mode": {"analysis_mode": "eval"},
    "with the batches' own statistics": {"analysis_mode": "batch"},
    HALF: {},
}


def small_images(folder: str) -> ImageData:
    """Some of CIFAR-10, at half its size."""
    train, test = cifar10.read(folder)
    order = torch.arange(len(train))
    used, held_out = halved(train.take(order[:TRAINED])), halved(train.take(order[-HELD_OUT:]))
    return ImageData(used, held_out, halved(test), Scale.standardising(used), cropped_and_flipped)


def halved(images: Images) -> Images:
    """Means of two by two pixels."""
    pixels = F.avg_pool2d(images.pixels.movedim(3, 1).float(), 2).round().to(torch.uint8)
    return Images(pixels.movedim(1, 3).contiguous(), images.labels)


def settings(arm: str, seed: int, data: Path) -> Settings:
    half = arm == HALF
    return Settings(
        model="pcn.models:wide_resnet20",
        model_options={"width": WIDTH // 2 if half else WIDTH},
        data="lagging_statistics:small_images",
        data_options={"folder": str(data)},
        epochs=EPOCHS,
        batch=64,
        seed=seed,
        learning_rate=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        schedule="drops",
        drops=(EPOCHS // 2, EPOCHS * 3 // 4),
        switch_at="never" if half else str(SWITCH),
        measure_every=0,
        **({} if half else {"params": 0.25, "worth": "taylor", "patterns": False, **ARMS[arm]}),
    )


def measured_anew(trainer: Trainer) -> Record:
    """The accuracy with running statistics that follow the network."""
    pcn.recalibrate_(trainer.model, trainer.data.calibration(TRAINED))
    accuracy = accuracy_percent(trainer.model, trainer.data.test(), trainer.world)
    return {"test_accuracy": accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(3), metavar="SEED")
    add_run_arguments(parser)
    options = parser.parse_args()
    records = Records(options.results or RESULTS / "lagging_statistics.json")
    jobs = [
        Job(arm, settings(arm, seed, options.data), at_the_end=measured_anew)
        for seed in options.seeds
        for arm in ARMS
        if not records.has(network=arm, seed=seed)
    ]
    run_jobs(jobs, records, options)


if __name__ == "__main__":
    main()
