"""Seconds and joules of an epoch, one network alone on the GPU at a time, and what the switch costs beside them.

    python experiments/time_and_energy.py --data DIR
    python experiments/time_and_energy.py --data DIR --networks wide_resnet20 wide_resnet20-pcn1 --epochs 20

Every network trains compiled and captured, a principal component network fused too, for two epochs that do not count
(it is switched after the first of them) and then for those that are measured: training alone, without validation.
Energy is NVML's counter over these epochs; the power of the idle GPU is measured before, with the data on it. Setting
up is compiling and capturing: it is paid once by the parent and once more after the switch. Nothing else may run on
the GPU.
Results: experiments/results/time_and_energy.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from cifar10_resnets import HALF, PARENT, settings
from cifar10_resnets import NETWORKS as ALL
from pcn.training import Settings, Trainer
from pcn.training.meter import Stopwatch
from records import RESULTS, Record, Records
from runs import Job, add_run_arguments, run_jobs

WANTED = (PARENT, f"{PARENT}-pcn1", "resnet110", HALF)  # by the paper's statements and ours
NETWORKS = (*WANTED, *(network for network in ALL if network not in WANTED))
WARM_UP, MEASURED = 2, 10  # epochs; the switch comes after the first
IDLE_S = 5.0


def short_settings(network: str, epochs: int, data: Path) -> Settings:
    """The recipe of Table 2 at its first learning rate."""
    whole = settings(network, 0, 182, data)
    is_pcn = whole.pcn is not None
    changes = {"epochs": WARM_UP + epochs, "switch_at": "1" if is_pcn else "never"}
    return Settings.from_mapping({**vars(whole), **changes, "schedule": "constant", "drops": ()})


def spent(trainer: Trainer) -> Record:
    """What has been spent until now; the power of the idle GPU is measured once, before the epochs that count."""
    progress, idle_w = trainer.progress, None
    if progress.epoch == WARM_UP:
        watch = Stopwatch(trainer.device)
        time.sleep(IDLE_S)
        seconds, energy_j = watch.lap()
        idle_w = None if energy_j is None else energy_j / seconds
    names = ("train_seconds", "energy_j", "setup_seconds")
    return {**{name: getattr(progress, name) for name in names}, "idle_w": idle_w}


def per_epoch(record: Record) -> Record:
    """Turn what was spent after each epoch into what an epoch costs; accuracies after so few say nothing."""
    parent, first, *_, last = record["curve"]
    epochs = last["epoch"] - first["epoch"]
    energy_j = None if last["energy_j"] is None else (last["energy_j"] - first["energy_j"]) / epochs
    kept = ("network", "seed", "total_params", "trainable_params", "switch_seconds", "commit")
    return {
        **{name: record[name] for name in kept},
        "setup_seconds": parent["setup_seconds"],
        "setup_again_seconds": last["setup_seconds"] - parent["setup_seconds"],
        "epochs_measured": epochs,
        "epoch_seconds": (last["train_seconds"] - first["train_seconds"]) / epochs,
        "epoch_energy_j": energy_j,
        "idle_w": first["idle_w"],
    }


def main() -> None:
    options = arguments().parse_args()
    if options.together > 1 or options.shared:
        raise SystemExit("time and energy are those of one run alone: leave --together and --shared out")
    records = Records(options.results or RESULTS / "time_and_energy.json")
    jobs = [
        Job(
            network,
            short_settings(network, options.epochs, options.data),
            compiled=torch.cuda.is_available(),
            fused=torch.cuda.is_available(),
            each_epoch=spent,
            summary=per_epoch,
        )
        for network in options.networks
        if not records.has(network=network, epochs_measured=options.epochs)
    ]
    run_jobs(jobs, records, options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NAME")
    parser.add_argument("--epochs", type=int, default=MEASURED, help="epochs that are measured")
    add_run_arguments(parser)
    return parser


if __name__ == "__main__":
    main()
