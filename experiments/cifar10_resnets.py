"""Table 2 of the paper: ResNets on CIFAR-10 and the principal component networks of WideResNet-20.

    python experiments/cifar10_resnets.py --data DIR                            # every network, seeds 0, 1 and 2
    python experiments/cifar10_resnets.py --data DIR --networks wide_resnet20-pcn1 --seeds 0 --epochs 60
    python experiments/cifar10_resnets.py --data DIR --together 4 --time-limit 1700

Runs are added to experiments/results/cifar10_resnets.json as they finish and are skipped when they are there. One that
was stopped goes on from its last checkpoint. The first 15 epochs of a principal component network are its parent's, so
it takes them from the parent's run with the same seed where that has come so far, and its record says so. Runs at once
share the GPU best under NVIDIA's MPS (nvidia-cuda-mps-control -d); their seconds and joules are recorded as null.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from cifar import load
from jobs import run_all
from meter import Meter, plus
from records import RESULTS, Record, Records, commit
from torch import Tensor, nn
from torch.optim import SGD
from training import Step, accuracy_percent, compute_dtype, pick_device, set_learning_rate_, switch_

import pcn
from pcn import models
from pcn.cost import count

PARENT, HALF = "wide_resnet20", "wide_resnet20-half"
NETWORKS = (PARENT, f"{PARENT}-pcn0", f"{PARENT}-pcn1", f"{PARENT}-pcn2", HALF, "resnet20", "resnet110")
EPOCHS, SWITCH, DROPS = 182, 15, (91, 136)  # the switch and the drops come after these epochs
BATCH, RATE, MOMENTUM = 128, 0.1, 0.9
WEIGHT_DECAY = 1e-4  # TensorFlow's L2 coefficient of 5e-5 adds twice that much of the weight to its gradient


@dataclass(frozen=True)
class Job:
    """One run: what is trained, where its files are, and when it has to stop (seconds since the epoch of time)."""

    network: str
    seed: int
    epochs: int
    data: Path
    work: Path
    checkpoint_every: int
    carry_state: bool
    shared: bool
    compiled: bool
    deadline: float

    @property
    def config(self) -> pcn.PCNConfig | None:
        return None if self.network == HALF else models.config(self.network)

    @property
    def switch_epoch(self) -> int | None:
        return None if self.config is None else self.scaled(SWITCH)

    @property
    def checkpoint(self) -> Path:
        state = "-carried" if self.carry_state else ""
        return self.work / f"{self.network}-seed{self.seed}-epochs{self.epochs}{state}.pt"

    @property
    def trunk(self) -> Path:
        """The checkpoint from which the parent's principal component networks with this seed branch off."""
        return self.work / f"{PARENT}-seed{self.seed}-epochs{self.epochs}-trunk.pt"

    @property
    def makes_trunk(self) -> bool:
        return self.network == PARENT or self.config is not None

    def scaled(self, epoch: int) -> int:
        """Return where an epoch of the paper's schedule falls in one of another length."""
        return max(1, round(epoch * self.epochs / EPOCHS))

    def learning_rate(self, epoch: int) -> float:
        if self.network == "resnet110" and epoch == 1:
            return 0.01
        return RATE * 0.1 ** sum(epoch > self.scaled(drop) for drop in DROPS)

    def say(self, text: str) -> None:
        print(f"{self.network} seed {self.seed} {text}", flush=True)


@dataclass
class Progress:
    """How far a run has come, and what its training epochs, the switch and the setting up of steps have taken.

    Seconds and joules are None where they are not known, as when other runs had a part of the GPU.
    """

    epoch: int = 0
    plan: str | None = None
    branched_off: bool = False
    train_seconds: float | None = 0.0
    energy_j: float | None = 0.0
    setup_seconds: float | None = 0.0
    switch_seconds: float | None = None
    validation_before_switch: float | None = None
    validation_after_switch: float | None = None


class Run:
    """A network in training: it starts afresh, or where its checkpoint or its parent's first epochs ended."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.device = pick_device()
        self.data = load(job.data, seed=job.seed, standardise=True, device=self.device)
        torch.manual_seed(job.seed)
        self.model = build(job.network)
        self.progress = Progress()
        self.step: Step | None = None
        self.epoch_s = 0.0
        saved = self._saved()
        if saved is not None:
            self.progress = Progress(**saved["progress"])
        if self.progress.plan is not None:
            pcn.Plan.from_json(self.progress.plan).reshape_(self.model)
        self.model.to(self.device)
        self.optimizer = make_optimizer(self.model)
        if saved is not None:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            job.say(f"goes on after epoch {self.progress.epoch}")

    def _saved(self) -> dict[str, Any] | None:
        if self.job.checkpoint.exists():
            return torch.load(self.job.checkpoint, map_location=self.device, weights_only=True)
        if self.job.config is None or not self.job.trunk.exists():
            return None
        saved = torch.load(self.job.trunk, map_location=self.device, weights_only=True)
        saved["progress"]["branched_off"] = True
        return saved

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        parts = {"model": self.model, "optimizer": self.optimizer}
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({"progress": asdict(self.progress), **states}, temporary)
        temporary.replace(path)

    def to_the_end(self) -> Record | None:
        """Train until the last epoch and return the record, or None when time runs out before."""
        job, progress = self.job, self.progress
        while progress.epoch < job.epochs:
            if progress.epoch == job.switch_epoch and progress.plan is None:
                self.switch(job.config)
            if self.step is None:
                self.set_up()
            if time.time() + 2 * self.epoch_s + 5 > job.deadline:
                self.save(job.checkpoint)
                job.say(f"stops after epoch {progress.epoch}: its time is up")
                return None
            self.train_epoch()
            if progress.epoch == job.scaled(SWITCH) and job.makes_trunk and not job.trunk.exists():
                self.save(job.trunk)
            if progress.epoch % job.checkpoint_every == 0:
                self.save(job.checkpoint)
        return self.record()

    def switch(self, config: pcn.PCNConfig) -> None:
        """Become a principal component network; the optimizer starts anew unless its state is carried."""
        progress = self.progress
        progress.validation_before_switch = self.validation_accuracy()
        with Meter(self.device) as meter:
            if self.job.carry_state:
                plan = switch_(self.model, self.data, config, self.optimizer)
            else:
                plan = switch_(self.model, self.data, config)
                self.optimizer = make_optimizer(self.model)
        self.step = None
        progress.plan = plan.to_json()
        progress.switch_seconds = self.solo(meter.seconds)
        progress.validation_after_switch = self.validation_accuracy()
        self.job.say(
            f"switches in {meter.seconds:.1f} s to {count(self.model).trainable:,} trainable parameters: validation "
            f"{progress.validation_before_switch:.2f}% before, {progress.validation_after_switch:.2f}% after"
        )

    def set_up(self) -> None:
        """Compile and capture the training step."""
        with Meter(self.device) as meter:
            images, labels = next(self.batches(epoch=0))
            self.step = Step(self.model, self.optimizer, images, labels, compiled=self.job.compiled)
        self.progress.setup_seconds = plus(self.progress.setup_seconds, self.solo(meter.seconds))
        self.job.say(f"has its step after {meter.seconds:.1f} s")

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        seed = self.job.seed * 10_000 + epoch
        return self.data.epoch(BATCH, seed, augment=True, dtype=compute_dtype(self.device))

    def train_epoch(self) -> None:
        progress = self.progress
        progress.epoch += 1
        set_learning_rate_(self.optimizer, self.job.learning_rate(progress.epoch))
        with Meter(self.device) as meter:
            for images, labels in self.batches(progress.epoch):
                self.step(images, labels)
        self.epoch_s = meter.seconds
        progress.train_seconds = plus(progress.train_seconds, self.solo(meter.seconds))
        progress.energy_j = plus(progress.energy_j, self.solo(meter.energy_j))
        self.job.say(
            f"epoch {progress.epoch}/{self.job.epochs} loss {self.step.take_mean_loss():.4f} "
            f"validation {self.validation_accuracy():.2f}% {meter.seconds:.2f} s"
        )

    def validation_accuracy(self) -> float:
        return accuracy_percent(self.model, self.data.validation, self.data.scale)

    def solo(self, measured: float | None) -> float | None:
        """Pass a measurement on, or None when other runs had a part of the GPU."""
        return None if self.job.shared else measured

    def record(self) -> Record:
        """Read the test set, this once, and say all there is to say."""
        job, progress, cost = self.job, self.progress, count(self.model)
        return {
            "network": job.network,
            "seed": job.seed,
            "epochs": job.epochs,
            "switch_epoch": job.switch_epoch,
            "total_params": cost.total,
            "trainable_params": cost.trainable,
            "test_accuracy": accuracy_percent(self.model, self.data.test, self.data.scale),
            "validation_accuracy": self.validation_accuracy(),
            "train_seconds": progress.train_seconds,
            "energy_j": progress.energy_j,
            "setup_seconds": progress.setup_seconds,
            "switch_seconds": progress.switch_seconds,
            "validation_before_switch": progress.validation_before_switch,
            "validation_after_switch": progress.validation_after_switch,
            "first_epochs_from_parent": progress.branched_off,
            "optimizer_state": None if job.config is None else "carried" if job.carry_state else "reset",
            "commit": commit(),
        }


def build(network: str) -> nn.Module:
    return models.wide_resnet20(width=32) if network == HALF else models.build(network)


def make_optimizer(model: nn.Module) -> SGD:
    """SGD with weight decay on everything except batch norm, as in the authors' code; a graph can read its rate."""
    norms = {id(p) for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in norms], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if id(p) in norms], "weight_decay": 0.0},
    ]
    rate = torch.tensor(RATE, device=next(model.parameters()).device)
    return SGD(groups, lr=rate, momentum=MOMENTUM, fused=True)


def run(job: Job) -> Record | None:
    return Run(job).to_the_end() if time.time() < job.deadline else None


def ready(job: Job, unfinished: Sequence[Job]) -> bool:
    """Let a principal component network wait for its parent's first epochs when the parent is being trained."""
    coming = any(other.network == PARENT and other.seed == job.seed for other in unfinished)
    return job.config is None or job.trunk.exists() or job.checkpoint.exists() or not coming


def main() -> None:
    options = arguments().parse_args()
    name = "cifar10_resnets-carried.json" if options.carry_state else "cifar10_resnets.json"
    records = Records(options.results or RESULTS / name)
    given = ("epochs", "data", "work", "checkpoint_every", "carry_state")
    jobs = [
        Job(
            network,
            seed,
            shared=options.together > 1,
            compiled=torch.cuda.is_available() and not options.eager,
            deadline=time.time() + options.time_limit,
            **{name: getattr(options, name) for name in given},
        )
        for seed in options.seeds
        for network in options.networks
        if not records.has(network=network, seed=seed, epochs=options.epochs)
    ]

    def done(record: Record | None) -> None:
        if record is not None:
            records.add(record)
            print(f"{record['network']} seed {record['seed']}: test {record['test_accuracy']:.2f}%", flush=True)

    failed = run_all(jobs, run, done, together=options.together, ready=ready)
    if failed:
        raise SystemExit(f"{failed} of {len(jobs)} runs failed")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="another length scales the whole schedule")
    parser.add_argument("--carry-state", action="store_true", help="keep the momentum at the switch")
    parser.add_argument("--eager", action="store_true", help="do not compile the training step")
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="runs at once, whose times are not recorded"
    )
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="EPOCHS")
    parser.add_argument("--work", type=Path, default=Path("runs/cifar10_resnets"), help="folder for checkpoints")
    parser.add_argument("--results", type=Path, help="results file, if not the one in experiments/results")
    return parser


if __name__ == "__main__":
    main()
