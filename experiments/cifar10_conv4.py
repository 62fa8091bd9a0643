"""Conv4 of the paper's Table 1 on CIFAR-10, and the principal component network that it becomes after epoch 2.

    python experiments/cifar10_conv4.py --data DIR                              # both networks, five runs each
    python experiments/cifar10_conv4.py --data DIR --networks conv4-pcn --seeds 0 --together 4

A run's accuracy is the test accuracy of the epoch with the highest validation accuracy, read once. Runs are added to
experiments/results/cifar10_conv4.json as they finish and are skipped when they are there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pcn.training import Settings
from records import RESULTS, Records
from runs import Job, add_common_arguments, run_jobs

NETWORKS = ("conv4", "conv4-pcn")
EPOCHS, SWITCH = 20, 2


def settings(network: str, seed: int, epochs: int, data: Path, *, carry_state: bool) -> Settings:
    """The paper's recipe: Adam, batches of 60, pixels divided by 255 and no more."""
    is_pcn = network == "conv4-pcn"
    return Settings(
        model="conv4",
        data="cifar10",
        data_dir=str(data),
        scale="unit",
        epochs=epochs,
        batch=60,
        seed=seed,
        optimizer="adam",
        learning_rate=1e-3,
        epsilon=1e-7,  # TensorFlow's default
        pcn=network if is_pcn else None,
        switch_at=str(SWITCH) if is_pcn else "never",
        carry_state=carry_state,
        keep_best=True,
        measure_every=0,
    )


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results or RESULTS / f"cifar10_conv4{'-carried' if options.carry_state else ''}.json")
    jobs = [
        Job(network, settings(network, seed, options.epochs, options.data, carry_state=options.carry_state))
        for seed in options.seeds
        for network in options.networks
        if not records.has(network=network, seed=seed, epochs=options.epochs)
    ]
    run_jobs(jobs, records, options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser, NETWORKS, seeds=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    return parser


if __name__ == "__main__":
    main()
