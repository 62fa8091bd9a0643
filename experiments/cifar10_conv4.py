"""Conv4 of the paper's Table 1 on CIFAR-10, and the principal component network that it becomes after epoch 2.

    python experiments/cifar10_conv4.py --data DIR                              # both networks, five runs each
    python experiments/cifar10_conv4.py --data DIR --networks conv4-pcn --seeds 0 --together 4

A run's accuracy is the test accuracy of the epoch with the highest validation accuracy, read once. Runs are added to
experiments/results/cifar10_conv4.json as they finish and are skipped when they are there.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cifar import load
from jobs import run_all
from meter import Meter, plus
from records import RESULTS, Record, Records, commit
from torch import Tensor, nn
from torch.optim import Adam
from training import Step, accuracy_percent, compute_dtype, pick_device, switch_

import pcn
from pcn import models
from pcn.cost import count

NETWORKS = ("conv4", "conv4-pcn")
EPOCHS, SWITCH, BATCH, RATE = 20, 2, 60, 1e-3
EPSILON = 1e-7  # TensorFlow's default


@dataclass(frozen=True)
class Job:
    network: str
    seed: int
    epochs: int
    data: Path
    carry_state: bool
    shared: bool
    deadline: float

    @property
    def config(self) -> pcn.PCNConfig | None:
        return models.config(self.network)

    def say(self, text: str) -> None:
        print(f"{self.network} seed {self.seed} {text}", flush=True)


@dataclass
class Best:
    """The epoch of the highest validation accuracy so far, and its weights."""

    epoch: int = 0
    validation_accuracy: float = -1.0
    weights: dict[str, Any] | None = None

    def see(self, epoch: int, accuracy: float, model: nn.Module) -> None:
        if accuracy > self.validation_accuracy:
            self.epoch, self.validation_accuracy = epoch, accuracy
            self.weights = copy.deepcopy(model.state_dict())


class Run:
    """A network in training."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.device = pick_device()
        self.data = load(job.data, seed=job.seed, standardise=False, device=self.device)
        torch.manual_seed(job.seed)
        self.model = models.build(job.network).to(self.device)
        self.optimizer = make_optimizer(self.model)
        self.step: Step | None = None
        self.best = Best()
        self.train_seconds: float | None = 0.0
        self.energy_j: float | None = 0.0
        self.switch_seconds: float | None = None

    def to_the_end(self) -> Record | None:
        """Train until the last epoch and return the record, or None when time runs out before."""
        for epoch in range(1, self.job.epochs + 1):
            if time.time() > self.job.deadline:
                self.job.say(f"stops before epoch {epoch}: its time is up")
                return None
            if self.job.config is not None and epoch == SWITCH + 1:
                self.switch(self.job.config)
            self.train_epoch(epoch)
        return self.record()

    def switch(self, config: pcn.PCNConfig) -> None:
        """Become a principal component network; the optimizer starts anew unless its state is carried."""
        with Meter(self.device) as meter:
            if self.job.carry_state:
                switch_(self.model, self.data, config, self.optimizer)
            else:
                switch_(self.model, self.data, config)
                self.optimizer = make_optimizer(self.model)
        self.step, self.best, self.switch_seconds = None, Best(), meter.seconds
        self.job.say(f"switches in {meter.seconds:.1f} s to {count(self.model).trainable:,} trainable parameters")

    def train_epoch(self, epoch: int) -> None:
        if self.step is None:
            self.step = Step(self.model, self.optimizer, *next(self.batches(0)), compiled=False)
        with Meter(self.device) as meter:
            for images, labels in self.batches(epoch):
                self.step(images, labels)
        self.train_seconds = plus(self.train_seconds, meter.seconds)
        self.energy_j = plus(self.energy_j, meter.energy_j)
        validation = accuracy_percent(self.model, self.data.validation, self.data.scale)
        self.best.see(epoch, validation, self.model)
        self.job.say(
            f"epoch {epoch}/{self.job.epochs} loss {self.step.take_mean_loss():.4f} "
            f"validation {validation:.2f}% {meter.seconds:.2f} s"
        )

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        seed = self.job.seed * 10_000 + epoch
        return self.data.epoch(BATCH, seed, augment=False, dtype=compute_dtype(self.device))

    def record(self) -> Record:
        """Read the test set, this once, with the weights of the best epoch."""
        job, best = self.job, self.best
        self.model.load_state_dict(best.weights)
        cost = count(self.model)
        return {
            "network": job.network,
            "seed": job.seed,
            "epochs": job.epochs,
            "switch_epoch": None if job.config is None else SWITCH,
            "total_params": cost.total,
            "trainable_params": cost.trainable,
            "test_accuracy": accuracy_percent(self.model, self.data.test, self.data.scale),
            "validation_accuracy": best.validation_accuracy,
            "epoch_of_best_validation": best.epoch,
            "train_seconds": None if job.shared else self.train_seconds,
            "energy_j": None if job.shared else self.energy_j,
            "switch_seconds": None if job.shared else self.switch_seconds,
            "optimizer_state": None if job.config is None else "carried" if job.carry_state else "reset",
            "commit": commit(),
        }


def make_optimizer(model: nn.Module) -> Adam:
    on_gpu = next(model.parameters()).is_cuda
    return Adam(model.parameters(), lr=RATE, eps=EPSILON, fused=True, capturable=on_gpu)


def run(job: Job) -> Record | None:
    return Run(job).to_the_end()


def main() -> None:
    options = arguments().parse_args()
    name = "cifar10_conv4-carried.json" if options.carry_state else "cifar10_conv4.json"
    records = Records(options.results or RESULTS / name)
    deadline = time.time() + options.time_limit
    jobs = [
        Job(network, seed, options.epochs, options.data, options.carry_state, options.together > 1, deadline)
        for seed in options.seeds
        for network in options.networks
        if not records.has(network=network, seed=seed, epochs=options.epochs)
    ]

    def done(record: Record | None) -> None:
        if record is not None:
            records.add(record)
            print(f"{record['network']} seed {record['seed']}: test {record['test_accuracy']:.2f}%", flush=True)

    failed = run_all(jobs, run, done, together=options.together)
    if failed:
        raise SystemExit(f"{failed} of {len(jobs)} runs failed")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="SEED")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--carry-state", action="store_true", help="keep Adam's moments at the switch")
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="runs at once, whose times are not recorded"
    )
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--results", type=Path, help="results file, if not the one in experiments/results")
    return parser


if __name__ == "__main__":
    main()
