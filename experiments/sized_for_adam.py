"""What coordinates that are sized for Adam are worth: digits, CIFAR-10, and a small GPT-2 that reads bytes.

    python experiments/sized_for_adam.py                        # digits: five seeds, five minutes on one core
    python experiments/sized_for_adam.py --text FILE            # and the language model, on the first 4 MB of a file
    python experiments/sized_for_adam.py --images DIR --only ConvNet   # four convolutions, half an hour on two cores
    python experiments/sized_for_adam.py --images DIR --together 6    # WideResNet-20 and a ViT too, on a GPU under MPS
    python experiments/sized_for_adam.py --table

On digits Adam with a cosine schedule trains the demo's network for 20 epochs; after the third the budget leaves a
quarter or a tenth of its parameters. Of the GPT-2 of two layers, which AdamW trains for 900 steps, it leaves two fifths
or a fifth after 150. On CIFAR-10 AdamW trains a small network of convolutions and WideResNet-20, whose norms are batch
norms, and a ViT of six layers; the budget leaves a quarter, or two fifths, after the third epoch. Each run is made with
coordinates that are sized for SGD's steps, which are PCA's own, and for Adam's; the parents stand beside them. What is
kept is the validation split's accuracy, or loss in nats per byte.
Results: experiments/results/sized_for_adam.json, and of CIFAR-10 sized_for_adam_images.json
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import pcn
from pcn.config import STEPPERS
from pcn.training import Settings
from records import RESULTS, Record, Records, commit_at_start
from runs import Job, run_jobs
from texts import HELD_OUT, LENGTH, TRAINED, loss_on, pieces, read_bytes, train

RATES, SHARES = (3e-4, 1e-3, 3e-3), (0.25, 0.1)
TEXT_RATES, TEXT_SHARES = (1e-3,), (0.4, 0.2)
VIT_SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4}
VIT = {"architectures": "ViTForImageClassification", "num_labels": 10, "image_size": 32, "patch_size": 4, **VIT_SIZES}
FILE, IMAGES_FILE = "sized_for_adam.json", "sized_for_adam_images.json"
PARENT = "parent"
KEPT = ("network", "seed", "learning_rate", "share", "trainable_params", "validation_accuracy", "commit")

Arm = tuple[str, float, float | None]  # by whose steps coordinates are sized, or "parent"; the rate; the budget


@dataclass(frozen=True)
class Images:
    """A network on CIFAR-10: what its settings say beside those of all, at which rates, with how much of it left."""

    own: Mapping[str, Any]
    rates: tuple[float, ...]
    shares: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1, 2)


IMAGES = {
    "ConvNet": Images({"model": "sized_for_adam:convolutions", "epochs": 10}, (1e-3, 3e-3), (0.25,)),
    "WideResNet-20": Images({"model": "wide_resnet20", "epochs": 15}, (1e-3, 3e-3), (0.25,)),
    "ViT": Images({"model": "hf:vit", "model_options": VIT, "epochs": 20, "warmup_epochs": 1.0}, (3e-4, 1e-3), (0.4,)),
}


def arms(rates: Sequence[float], shares: Sequence[float]) -> list[Arm]:
    """The parent at each rate, and its networks within each budget."""
    sized = [(stepper, rate, share) for rate, share, stepper in product(rates, shares, STEPPERS)]
    return [*((PARENT, rate, None) for rate in rates), *sized]


def digits(arm: Arm, seed: int) -> Job:
    return classifier("digits", arm, seed, {"optimizer": "adam", "epochs": 20})


def images(network: str, arm: Arm, seed: int, data: Path, work: Path | None = None) -> Job:
    recipe = {"data": "cifar10", "data_dir": str(data), "augment": "crop-flip", "batch": 128, "optimizer": "adamw"}
    job = classifier(network, arm, seed, {**recipe, "weight_decay": 0.05, **IMAGES[network].own})
    folder = None if work is None else work / "-".join(map(str, (network, *arm, seed)))
    return replace(job, folder=folder, compiled=torch.cuda.is_available())


def convolutions() -> nn.Sequential:
    """Four convolutions with batch norm, all but the last at every second pixel, and a classifier of their means."""

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    blocks = [*block(3, 32, 2), *block(32, 64, 2), *block(64, 128, 2), *block(128, 128, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def classifier(task: str, arm: Arm, seed: int, recipe: dict[str, Any]) -> Job:
    """Train by a cosine schedule; the budget is met after the third epoch."""
    stepper, rate, share = arm
    switched = {} if share is None else {"switch_at": "3", "params": share, "sized_for": stepper}
    settings = Settings(seed=seed, learning_rate=rate, schedule="cosine", measure_every=0, **recipe, **switched)
    return Job(f"{task}, {stepper}", settings, summary=partial(kept, rate, share))


def kept(rate: float, share: float | None, record: Record) -> Record:
    known = {**record, "learning_rate": rate, "share": share}
    return {name: known[name] for name in KEPT}


def text(arm: Arm, seed: int, data: Tensor) -> Record:
    """Train the language model; the loss that it ends with on what it has not seen."""
    stepper, rate, share = arm
    torch.manual_seed(seed)
    model, seen = language_model(), data[:TRAINED]

    def switch(optimizers: Sequence[Optimizer], drawn: torch.Generator) -> None:
        batches = [{"input_ids": pieces(seen, drawn)} for _ in range(16)]
        budget = pcn.Budget(params=share, config=pcn.PCNConfig(sized_for=stepper))  # type: ignore[arg-type]
        pcn.compress_(model, batches, budget, optimizer=optimizers)

    train(model, rate, seen, torch.Generator().manual_seed(seed), None if share is None else switch)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    found = {"seed": seed, "learning_rate": rate, "share": share, "trainable_params": trained}
    loss = loss_on(model, data[TRAINED:])
    return {"network": f"text, {stepper}", **found, "validation_loss": loss, "commit": commit_at_start()}


def language_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 192, "n_layer": 2, "n_head": 4}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **off, bos_token_id=None, eos_token_id=None))


def table(records: Sequence[Record]) -> str:
    """Each row by rate and budget: the parent's mean, both sizes', and their difference seed by seed."""
    key = ("network", "learning_rate", "share", "seed")
    held = {tuple(r[name] for name in key): r.get("validation_accuracy", r.get("validation_loss")) for r in records}
    lines = [
        "| task | rate | parameters | the wide network | sized for SGD | sized for Adam | difference, seed by seed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    on_images = ((network, each.rates, each.shares, 2) for network, each in IMAGES.items())
    tasks = ("digits", RATES, SHARES, 2), ("text", TEXT_RATES, TEXT_SHARES, 3), *on_images
    for task, rates, shares, places in tasks:
        for rate, share in product(rates, shares):
            seeds = sorted({seed for *key, seed in held if key == [f"{task}, adam", rate, share]})
            if not seeds:
                continue
            wide, sgd, adam = (
                [held[f"{task}, {network}", rate, budget, seed] for seed in seeds]
                for network, budget in ((PARENT, None), ("sgd", share), ("adam", share))
            )
            means = " | ".join(f"{statistics.fmean(each):.{places}f}" for each in (wide, sgd, adam))
            apart = ", ".join(f"{after - before:+.{places}f}" for before, after in zip(sgd, adam, strict=True))
            lines.append(f"| {task} | {rate:g} | {share:.0%} | {means} | {apart} |")
    return "\n".join(lines)


def main() -> None:
    options = arguments().parse_args()
    if options.table:
        print(table([record for name in (FILE, IMAGES_FILE) for record in Records(options.results / name).records]))
        return
    records = Records(options.results / (FILE if options.images is None else IMAGES_FILE))

    def missing(task: str, arm: Arm, seed: int) -> bool:
        stepper, rate, share = arm
        return not records.has(network=f"{task}, {stepper}", learning_rate=rate, share=share, seed=seed)

    if options.images is not None:
        all_jobs = (
            images(name, arm, seed, options.images, options.work)
            for name, each in IMAGES.items()
            if name in options.only
            for seed, arm in product(each.seeds, arms(each.rates, each.shares))
            if seed in options.seeds and missing(name, arm, seed)
        )
        run_jobs(sorted(all_jobs, key=lambda job: job.settings.seed), records, options)
        return
    each = product(options.seeds, arms(RATES, SHARES))
    run_jobs([digits(arm, seed) for seed, arm in each if missing("digits", arm, seed)], records, options)
    if options.text is not None:
        data = read_bytes(options.text, TRAINED + HELD_OUT)
        for seed, arm in product(options.seeds[:3], arms(TEXT_RATES, TEXT_SHARES)):
            if missing("text", arm, seed):
                records.add(text(arm, seed, data))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text of 4 MB or more; the first three seeds are run on it")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)), metavar="SEED")
    parser.add_argument("--images", type=Path, help="folder with CIFAR-10: the networks that read it, and no others")
    parser.add_argument("--only", nargs="+", choices=IMAGES, default=list(IMAGES), help="of these networks")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="runs at once")
    parser.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--work", type=Path, default=Path("runs/sized_for_adam"), help="folder for checkpoints")
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for results")
    parser.set_defaults(shared=True)
    return parser


if __name__ == "__main__":
    main()
