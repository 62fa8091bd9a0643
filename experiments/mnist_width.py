"""Experiment 1 of the paper: how many dimensions the hidden layer of a network on MNIST uses, against its width.

    python experiments/mnist_width.py --data DIR                    # widths 50 to 750, five runs each
    python experiments/mnist_width.py --data DIR --widths 450 --seeds 0

Sigmoid layers, Adam, batches of 60; early stopping on validation accuracy (patience 2, at least 0.05 points better);
PCA over the hidden activations of all 55,000 training images; dimensions with a variance above 0.1 count. Runs are
added to experiments/results/mnist_width.json as they finish and are skipped when they are there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pcn
from pcn.training import Settings, Trainer
from records import RESULTS, Record, Records
from runs import Job, add_run_arguments, run_jobs

WIDTHS = tuple(range(50, 751, 50))
THRESHOLD = 0.1
MOST_EPOCHS = 100


def settings(width: int, seed: int, data: Path) -> Settings:
    return Settings(
        model="pcn.models:mnist_network",
        model_options={"width": width},
        data="mnist",
        data_dir=str(data),
        scale="unit",
        epochs=MOST_EPOCHS,
        batch=60,
        seed=seed,
        optimizer="adam",
        learning_rate=1e-3,
        epsilon=1e-7,  # TensorFlow's default
        patience=2,
        min_delta=0.05,
        measure_every=0,
    )


def dimensions(trainer: Trainer) -> Record:
    """Count the directions of the hidden activations, of the best epoch's weights, over all training images."""
    seen = pcn.analyze(trainer.model, trainer.data.calibration(10**9), layers="output")
    return {
        "width": trainer.settings.model_options["width"],
        "effective_dimensions": seen.spectrum("output").count_above(THRESHOLD),
        "samples": seen.samples("output"),
    }


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results or RESULTS / "mnist_width.json")
    jobs = [
        Job(f"width {width}", settings(width, seed, options.data), at_the_end=dimensions)
        for seed in options.seeds
        for width in options.widths
        if not records.has(width=width, seed=seed)
    ]
    run_jobs(jobs, records, options, reuse=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with MNIST's four files")
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS, metavar="WIDTH")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="SEED")
    add_run_arguments(parser)
    return parser


if __name__ == "__main__":
    main()
