"""What the paper leaves open: the same switch done in other ways, on Conv4 and, over fewer epochs, on WideResNet-20.

    python experiments/open_questions.py --data DIR --together 6
    python experiments/open_questions.py --data DIR --networks conv4-pcn --arms "as in the paper" "random basis"

For a seed, all arms that switch branch off one and the same trained parent, so that they differ in the switch alone.
Each arm changes one thing about the paper's protocol: a dropped channel counts as zero, the optimizer starts afresh,
the basis is PCA's in eval mode and frozen, batch norm keeps its running statistics. The orders differ only where
outputs are dropped, so for WideResNet-20 they are compared on PCN2; Conv4 has no batch norm. "from scratch" is the
principal component network with random bases, never switched. Results: experiments/results/open_questions.json
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cifar10_conv4
import cifar10_resnets
import pcn
from pcn import models
from pcn.nn import PCModule
from pcn.training import Settings
from records import RESULTS, Records
from runs import Job, add_run_arguments, run_jobs

EPOCHS = {"conv4": cifar10_conv4.EPOCHS, "wide_resnet20": 20}
PAPER, SCRATCH = "as in the paper", "from scratch"
ORDERS = ("project first", "kept block")
CHANGES: dict[str, dict[str, Any]] = {
    PAPER: {},
    "project first": {"order": "project_first"},  # a dropped channel counts as its mean
    "kept block": {"order": "kept_block"},  # the basis is that of the channels that are kept
    "state carried": {"carry_state": True},
    "basis trained": {"train_basis": True},
    "random basis": {"basis": "random"},
    "train-mode statistics": {"analysis_mode": "train"},
    "batch norm recalibrated": {"recalibrate": True},
    SCRATCH: {"model": "open_questions:from_scratch", "pcn": None, "switch_at": "never"},
}
ARMS = {
    "conv4-pcn": (PAPER, *ORDERS, "state carried", "basis trained", "random basis", SCRATCH),
    "wide_resnet20-pcn1": tuple(arm for arm in CHANGES if arm not in ORDERS),
    "wide_resnet20-pcn2": (PAPER, *ORDERS),
    "wide_resnet20": (PAPER,),  # for comparison: the parent over these epochs,
    "wide_resnet20-half": (PAPER,),  # and half of its width, as large as PCN1
}


def from_scratch(network: str) -> nn.Module:
    """Build a principal component network with random orthonormal bases and no history."""
    model = models.build(network)
    seen = pcn.analyze(model, [models.example(network, batch=64)])  # nothing is trained yet, so only shapes count
    pcn.make_plan(model, seen, models.config(network)).reshape_(model)
    for module in model.modules():
        if isinstance(module, PCModule):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")  # of its rank: a random basis keeps the scale
            nn.init.zeros_(module.bias)
    return model


def settings(network: str, arm: str, seed: int, epochs: int, data: Path) -> Settings:
    if network.startswith("conv4"):
        base = cifar10_conv4.settings(network, seed, epochs, data, carry_state=False)
    else:
        base = cifar10_resnets.settings(network, seed, epochs, data, carry_state=False, checkpoint_every=10)
    scratch = {"model_options": {"network": network}} if arm == SCRATCH else {}
    return dataclasses.replace(base, **CHANGES[arm], **scratch)


def make_job(network: str, arm: str, seed: int, options: argparse.Namespace) -> Job:
    parent = network.split("-")[0]
    epochs = options.epochs or EPOCHS[parent]
    own = settings(network, arm, seed, epochs, options.data)
    switches = own.switch_at != "never"
    long = parent != "conv4"
    return Job(
        f"{network}, {arm}",
        own,
        options.work / f"{network}-{arm.replace(' ', '-')}-seed{seed}-epochs{epochs}" if long else None,
        trunk=options.work / f"{parent}-seed{seed}-epochs{epochs}-trunk.pt" if switches else None,
        trunk_epoch=int(own.switch_at) if switches else 0,
        compiled=long and torch.cuda.is_available(),
    )


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results or RESULTS / "open_questions.json")
    jobs = [
        job
        for seed in options.seeds
        for network in options.networks
        for arm in ARMS[network]
        if arm in options.arms
        for job in [make_job(network, arm, seed, options)]
        if not records.has(network=job.network, seed=seed, epochs=job.settings.epochs)
    ]
    run_jobs(jobs, records, options, reuse=all(job.folder is None for job in jobs))  # Conv4's are short


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--networks", nargs="+", choices=ARMS, default=tuple(ARMS), metavar="NAME")
    parser.add_argument("--arms", nargs="+", choices=CHANGES, default=tuple(CHANGES), metavar="ARM")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--epochs", type=int, help="in place of the usual number")
    parser.add_argument("--work", type=Path, default=Path("runs/open_questions"), help="folder for checkpoints")
    add_run_arguments(parser)
    return parser


if __name__ == "__main__":
    main()
