"""What recalibrating batch norm at the switch is worth: pairs of runs that are the same network until then.

    python experiments/digits_recalibration.py                  # ten seeds, a minute on one core

A convolutional network with batch norm on scikit-learn's digits, a quarter of every rank after epoch 4 of 15. For each
seed, one run keeps the parent's running statistics and one measures them anew on the calibration images; until then
they are the same. Results: experiments/results/digits_recalibration.json
"""

from __future__ import annotations

import argparse
import statistics

from torch import nn

from pcn.training import Settings
from records import RESULTS, Records
from runs import Job, add_run_arguments, run_jobs

EPOCHS, SWITCH = 15, 4
ARMS = {"kept": False, "recalibrated": True}


def network(width: int = 32) -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, width),
        *block(width, width),
        nn.MaxPool2d(2),
        *block(width, 2 * width),
        *block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


def settings(seed: int, recalibrate: bool) -> Settings:
    return Settings(
        model="digits_recalibration:network",
        data="digits",
        epochs=EPOCHS,
        batch=64,
        seed=seed,
        learning_rate=0.05,
        schedule="cosine",
        rank="0.25",
        exclude=("0",),
        switch_at=str(SWITCH),
        recalibrate=recalibrate,
        measure_every=0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(10), metavar="SEED")
    add_run_arguments(parser)
    options = parser.parse_args()
    records = Records(options.results or RESULTS / "digits_recalibration.json")
    jobs = [
        Job(arm, settings(seed, recalibrate))
        for seed in options.seeds
        for arm, recalibrate in ARMS.items()
        if not records.has(network=arm, seed=seed)
    ]
    run_jobs(jobs, records, options)
    for name in ("validation_before_switch", "validation_after_switch", "test_accuracy"):
        for arm in ARMS:
            values = [record[name] for record in records.records if record["network"] == arm]
            print(f"{arm}: {name} {statistics.fmean(values):.2f} (from {min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
