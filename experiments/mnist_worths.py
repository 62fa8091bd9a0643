"""By what a budget should choose ranks: tight and loose ones of a wide dense network on MNIST, and a narrower network.

    python experiments/mnist_worths.py --data DIR                    # three seeds, half an hour on one core
    python experiments/mnist_worths.py --table                       # differences from the narrower network

Three hidden layers of 512 with ReLU, Adam, the switch after epoch 1 of 8. For each share of the parameters and each
seed: ranks by response, evenly, hedged between the two, the same with a classifier that stays as it is, the same before
any training, the same with coordinates that are sized for Adam in all layers or in all but the one that reads the
pixels, and a network of fewer units that has as many parameters, from scratch. What is kept is the accuracy on the
validation split.
Results: experiments/results/mnist_worths.json
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from torch import nn

from pcn.training import Settings
from records import RESULTS, Record, Records
from runs import Job, add_run_arguments, run_jobs

EPOCHS, SWITCH = 8, 1
WIDTH, PIXELS, CLASSES = 512, 784, 10
SHARES = (0.1, 0.05, 0.03)
UNSIZED = {"sized_for": "sgd"}  # PCA's own coordinates, as large as they are
ARMS: dict[str, dict[str, Any]] = {
    "response": {"worth": "response", **UNSIZED},
    "evenly": {"worth": "evenly", **UNSIZED},
    "hedged": {"worth": "hedged", **UNSIZED},
    "hedged, last layer whole": {"worth": "hedged", "exclude": ("7",), **UNSIZED},
    "hedged, before any training": {"worth": "hedged", "switch_at": "0", **UNSIZED},
    "hedged, sized for Adam": {"worth": "hedged"},
    "hedged, all but the first layer sized for Adam": {"worth": "hedged", "layers": {"1": UNSIZED}},
    "hedged, before any training, sized for Adam": {"worth": "hedged", "switch_at": "0"},
    "hedged, before any training, all but the first layer sized": {
        "worth": "hedged",
        "switch_at": "0",
        "layers": {"1": UNSIZED},
    },
}
KEPT = (
    "network",
    "seed",
    "epochs",
    "switch_epoch",
    "trainable_params",
    "total_params",
    "validation_accuracy",
    "commit",
)


def network(width: int = WIDTH) -> nn.Sequential:
    def hidden(inputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, width), nn.ReLU()]

    return nn.Sequential(nn.Flatten(), *hidden(PIXELS), *hidden(width), *hidden(width), nn.Linear(width, CLASSES))


def parameters(width: int) -> int:
    """How many such a network has.

    >>> parameters(512) == sum(each.numel() for each in network().parameters())
    True
    """
    return (PIXELS + 1) * width + 2 * (width + 1) * width + (width + 1) * CLASSES


def narrow_width(share: float) -> int:
    """The widest that has no more than a share of the parameters."""
    return max(width for width in range(1, WIDTH + 1) if parameters(width) <= share * parameters(WIDTH))


def settings(seed: int, data: Path, **changes: Any) -> Settings:
    recipe: dict[str, Any] = {"optimizer": "adam", "learning_rate": 1e-3, "batch": 128, "measure_every": 0}
    where = {"model": "mnist_worths:network", "data": "mnist", "data_dir": str(data), "scale": "unit"}
    return Settings(**where, epochs=EPOCHS, seed=seed, **recipe, **changes)


def jobs(seed: int, data: Path) -> list[Job]:
    """The parent, and for each share the arms and the narrower network."""
    changes: dict[str, dict[str, Any]] = {"parent": {}}
    for share in SHARES:
        switched = {"params": share, "switch_at": str(SWITCH)}
        changes |= {f"{arm} {share}": {**switched, **how} for arm, how in ARMS.items()}
        changes[f"narrow {share}"] = {"model_options": {"width": narrow_width(share)}}
    return [Job(arm, settings(seed, data, **each), summary=kept) for arm, each in changes.items()]


def kept(record: Record) -> Record:
    return {name: record[name] for name in KEPT}


def table(records: list[Record]) -> str:
    """Validation accuracy of every arm, and by how much each is above the narrower network of its seed."""
    held = {(record["network"], record["seed"]): record["validation_accuracy"] for record in records}
    seeds = sorted({seed for _, seed in held})
    lines = ["| parameters | arm | validation (%) | minus narrow, seed by seed |", "| ---: | --- | ---: | --- |"]

    def row(share: str, arm: str, key: str, beside: str | None) -> str:
        there = [seed for seed in seeds if (key, seed) in held]
        apart = [held[key, seed] - held[beside, seed] for seed in there if beside and (beside, seed) in held]
        mean = statistics.fmean(held[key, seed] for seed in there)
        return f"| {share} | {arm} | {mean:.2f} | {', '.join(f'{each:+.2f}' for each in apart)} |"

    arms: list[tuple[str, str, str, str | None]] = [("all", "parent", "parent", None)]
    for share in SHARES:
        arms += [(f"{share:.0%}", arm, f"{arm} {share}", f"narrow {share}") for arm in ARMS]
        arms.append((f"{share:.0%}", "narrow", f"narrow {share}", None))
    known = {network for network, _ in held}
    return "\n".join([*lines, *(row(*arm) for arm in arms if arm[2] in known)])


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results or RESULTS / "mnist_worths.json")
    if options.table:
        print(table(records.records))
        return
    if options.data is None:
        raise SystemExit("give --data, the folder with MNIST's four files, or --table")
    left = [job for seed in options.seeds for job in jobs(seed, options.data)]
    left = [job for job in left if not records.has(network=job.network, seed=job.settings.seed)]
    run_jobs(left, records, options, reuse=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with MNIST's four files")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(3), metavar="SEED")
    parser.add_argument("--table", action="store_true", help="print what is there")
    add_run_arguments(parser)
    return parser


if __name__ == "__main__":
    main()
