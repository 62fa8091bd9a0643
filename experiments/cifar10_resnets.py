"""Table 2 of the paper: ResNets on CIFAR-10 and the principal component networks of WideResNet-20.

    python experiments/cifar10_resnets.py --data DIR                            # every network, seeds 0, 1 and 2
    python experiments/cifar10_resnets.py --data DIR --networks wide_resnet20-pcn1 --seeds 0 --epochs 60
    python experiments/cifar10_resnets.py --data DIR --together 4 --time-limit 1700

Runs are added to experiments/results/cifar10_resnets.json as they finish and are skipped when they are there. One that
was stopped goes on from its last checkpoint. The first 15 epochs of a principal component network are its parent's, so
it takes them from the parent's run with the same seed where that has come so far. Runs at once share the GPU best under
NVIDIA's MPS (nvidia-cuda-mps-control -d); their seconds and joules are recorded as null.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pcn import models
from pcn.training import Settings
from records import RESULTS, Records
from runs import Job, add_common_arguments, run_jobs

PARENT, HALF = "wide_resnet20", "wide_resnet20-half"
NETWORKS = (PARENT, f"{PARENT}-pcn0", f"{PARENT}-pcn1", f"{PARENT}-pcn2", HALF, "resnet20", "resnet110")
EPOCHS, SWITCH, DROPS = 182, 15, (91, 136)  # the switch and the drops come after these epochs


def settings(network: str, seed: int, epochs: int, data: Path, **more: Any) -> Settings:
    """The paper's recipe; another number of epochs scales the whole schedule."""

    def scaled(epoch: int) -> int:
        return max(1, round(epoch * epochs / EPOCHS))

    half = network == HALF
    is_pcn = not half and models.config(network) is not None
    return Settings(
        model="pcn.models:wide_resnet20" if half else PARENT if is_pcn else network,
        model_options={"width": 32} if half else {},
        data="cifar10",
        data_dir=str(data),
        augment="crop-flip",
        epochs=epochs,
        batch=128,
        seed=seed,
        optimizer="sgd",
        learning_rate=0.1,
        momentum=0.9,
        weight_decay=1e-4,  # TensorFlow's L2 coefficient of 5e-5 adds twice that much of the weight to its gradient
        schedule="drops",
        drops=tuple(map(scaled, DROPS)),
        # "We start ResNet-110 with a learning rate of 0.01 for one epoch."
        **({"warmup_epochs": 1.0, "warmup_factor": 0.1} if network == "resnet110" else {}),
        pcn=network if is_pcn else None,
        switch_at=str(scaled(SWITCH)) if is_pcn else "never",
        measure_every=0,
        **more,
    )


def make_job(network: str, seed: int, options: argparse.Namespace) -> Job:
    asked = {name: getattr(options, name) for name in ("carry_state", "checkpoint_every")}
    own = settings(network, seed, options.epochs, options.data, **asked)
    own = replace(own, recalibrate=options.recalibrate and own.pcn is not None)
    branches = network == PARENT or own.pcn is not None
    fast = torch.cuda.is_available() and not options.eager
    # Of three fused runs that shared a GPU two have stood still after their switch: perhaps in the compiler, as
    # pcn.kernels.inductor says. Not tried again since.
    alone = options.together == 1 and not options.shared
    return Job(
        network,
        own,
        options.work / f"{network}-seed{seed}-epochs{options.epochs}{variant(options)}",
        trunk=options.work / f"{PARENT}-seed{seed}-epochs{options.epochs}-trunk.pt" if branches else None,
        trunk_epoch=max(1, round(SWITCH * options.epochs / EPOCHS)),
        compiled=fast,
        fused=fast and alone,
    )


def variant(options: argparse.Namespace) -> str:
    """What sets these runs apart from the paper's, as the end of a file's name."""
    return ("-carried" if options.carry_state else "") + ("-recalibrated" if options.recalibrate else "")


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results or RESULTS / f"cifar10_resnets{variant(options)}.json")
    jobs = [
        make_job(network, seed, options)
        for seed in options.seeds
        for network in options.networks
        if not records.has(network=network, seed=seed, epochs=options.epochs)
    ]
    run_jobs(jobs, records, options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser, NETWORKS, seeds=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="another length scales the whole schedule")
    parser.add_argument("--recalibrate", action="store_true", help="measure batch norm's statistics anew at the switch")
    parser.add_argument("--eager", action="store_true", help="do not compile the training step")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="EPOCHS")
    parser.add_argument("--work", type=Path, default=Path("runs/cifar10_resnets"), help="folder for checkpoints")
    return parser


if __name__ == "__main__":
    main()
