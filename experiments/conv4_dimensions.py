"""Experiment 2 of the paper: the dimensions that the input of Conv4's first dense layer uses, epoch by epoch.

    python experiments/conv4_dimensions.py --data DIR

After every epoch: directions with a variance above 0.1 over 5,000 training images, training and test accuracy. (The
test accuracy is part of the figure; nothing is chosen by it.) Results: experiments/results/conv4_dimensions.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pcn
from cifar10_conv4 import settings
from pcn.training import Trainer
from pcn.training.evaluation import accuracy_percent
from records import RESULTS, Record, Records
from runs import Job, add_run_arguments, run_jobs

THRESHOLD, EPOCHS = 0.1, 20


def look(trainer: Trainer) -> Record:
    seen = pcn.analyze(trainer.model, trainer.data.calibration(5000), layers="fc1")
    batches = trainer.data.epoch(1, batch=2500, seed=0, start=0, share=trainer.world.share)
    return {
        "effective_dimensions": seen.spectrum("fc1").count_above(THRESHOLD),
        "train_accuracy": accuracy_percent(trainer.model, batches, trainer.world),
        "test_accuracy": accuracy_percent(trainer.model, trainer.data.test(), trainer.world),
    }


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results or RESULTS / "conv4_dimensions.json")
    jobs = [
        Job("conv4", settings("conv4", seed, EPOCHS, options.data, carry_state=False), each_epoch=look)
        for seed in options.seeds
        if not records.has(network="conv4", seed=seed)
    ]
    run_jobs(jobs, records, options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="SEED")
    add_run_arguments(parser)
    return parser


if __name__ == "__main__":
    main()
