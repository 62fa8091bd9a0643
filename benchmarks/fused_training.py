"""Whether training with the fused kernels goes as without: the losses of ten epochs of WideResNet-20-PCN1, both ways.

    python benchmarks/fused_training.py --data DIR
    python benchmarks/fused_training.py --table

Both runs fork from the same parent after its first epoch, with the same data in the same order. A third one, without
the kernels and not compiled, shows how far runs of the same mathematics drift apart that round differently: two runs of
the same code are equal to the last bit. Results: benchmarks/results/fused_training.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import peers  # noqa: F401  the experiments can be imported from here on

# isort: split
from cifar10_resnets import PARENT, settings
from markdown_tables import markdown
from pcn.training import Settings, Trainer, World, load_data, world
from pcn.training.state import take
from pcn.training.step import training_dtype
from peers.one_run import UNWATCHED
from records import Records

RESULTS = Path(__file__).parent / "results" / "fused_training.json"
NETWORK, EPOCHS = f"{PARENT}-pcn1", 10
RUNS = {"stock": (True, False), "fused": (True, True), "stock, not compiled": (False, False)}  # compiled, fused
NOTHING = "Not measured yet: there is no `benchmarks/results/fused_training.json`."
Record = dict[str, Any]


def main() -> None:
    options = arguments().parse_args()
    if options.table:
        print(table(options.results))
        return
    if options.data is None:
        raise SystemExit("give --data, the folder with CIFAR-10's binary version, or --table")
    with world(options.device) as here:
        wanted = replace(settings(NETWORK, 0, options.epochs, options.data), **UNWATCHED)
        data = load_data(wanted, here.device, training_dtype(here.device))
        records = Records(options.results)
        if records.records:
            raise SystemExit(f"{options.results} holds results, of another parent than this run's: move it away first")
        state = parents_state(wanted, data, here)
        for name, (compiled, fused) in RUNS.items():
            epochs = trained(wanted, state, data, here, compiled=compiled, fused=fused)
            records.add({"run": name, "network": NETWORK, "epochs": epochs})


def parents_state(wanted: Settings, data: Any, here: World) -> Record:
    """The state of the parent after one epoch."""
    alone = {"pcn": None, "rank": None, "switch_at": "never", "schedule": "constant", "drops": ()}
    parent = Trainer(replace(wanted, epochs=1, **alone), data, world=here)
    parent.run()
    return {**take(parent), "switch": None}


def trained(wanted: Settings, state: Record, data: Any, here: World, *, compiled: bool, fused: bool) -> list[Record]:
    """What every epoch after the fork was like."""
    seen: list[Record] = []
    names = ("epoch", "loss", "validation_accuracy", "train_seconds", "peak_memory_bytes")

    def tell(record: Record) -> None:
        print(record, flush=True)
        if record["event"] == "epoch":
            seen.append({name: record[name] for name in names})

    compiled = compiled and torch.cuda.is_available()
    trainer = Trainer(wanted, data, world=here, compiled=compiled, fused=fused, tell=tell)
    trainer.branch_(state)
    trainer.run()
    return seen


def table(path: Path = RESULTS) -> str:
    """The losses side by side; or that nothing was measured."""
    if not path.exists():
        return NOTHING
    found = {record["run"]: record["epochs"] for record in json.loads(path.read_text())["records"]}
    epochs = zip(*found.values(), strict=False)
    rows = [[str(each[0]["epoch"]), *(f"{run['loss']:.4f}" for run in each)] for each in epochs]
    return markdown(["epoch", *(f"loss, {name}" for name in found)], rows)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10's binary version")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--device", help="cuda, or cpu where Triton's interpreter or nothing is to be tried")
    parser.add_argument("--table", action="store_true", help="print the results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    main()
