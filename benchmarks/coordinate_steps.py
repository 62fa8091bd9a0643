"""What a step costs of a network in all of its principal coordinates, and of one by Muon, beside it as it was.

    python benchmarks/coordinate_steps.py                # a CPU with nothing else to do, or a GPU: a few minutes
    python benchmarks/coordinate_steps.py --table

The Llamas of small_llama.py, wide and narrow, are rewritten in all of their sized coordinates. They run as rewritten,
with two products in every layer, and with each layer in the form that is fastest here, mostly with the basis multiplied
out once a step, which is the less the more positions a batch has. Steps are forward, backward and AdamW, in fp32; as it
was it is trained by Muon too. All take turns, so that other work on the machine is shared; a number is the median of
its turns.
Results: benchmarks/results/coordinate_steps.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from peers import RESULTS  # which finds the experiments' modules as well

# isort: split
import pcn
import small_llama
from markdown_tables import markdown
from pcn.fusion import fastest_forms, fuse_
from records import Record, Records, commit_at_start
from texts import LENGTH, adamw

BATCHES = (16, 64)  # pieces of the text; the first is what small_llama.py trains with
TURNS = 15
IN_ALL = pcn.PCNConfig(rank=1.0, skip_larger=False, sized_for="adam", centred=False)
WAYS = ("plain", "factored", "fastest", "muon")


def shapes() -> dict[str, tuple[int, int]]:
    whole = small_llama.parameters(small_llama.HIDDEN, small_llama.INNER)
    return {
        small_llama.PARENT: (small_llama.HIDDEN, small_llama.INNER),
        small_llama.NARROW: small_llama.narrow(int(small_llama.SHARE * whole)),
    }


def measure(name: str, batch: int, turns: int, device: torch.device) -> Record:
    hidden, inner = shapes()[name]
    torch.manual_seed(0)
    read = torch.randint(256, (batch, LENGTH)).to(device)
    models = {way: small_llama.llama(hidden, inner).to(device) for way in WAYS}
    for way in ("factored", "fastest"):
        pcn.compress_(models[way], [{"input_ids": read}], IN_ALL)
    example = {"input_ids": read}
    forms = fastest_forms(models["fastest"], example)
    fuse_(models["fastest"], example, forms=forms)
    makers = dict.fromkeys(WAYS, adamw) | {"muon": small_llama.muon}
    steps = {way: step(model, makers[way](model, 1e-3), read) for way, model in models.items()}
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(-2, turns):  # the first two warm up
        for way in WAYS:
            seconds = timed(steps[way], device)
            taken[way] += [seconds] if turn >= 0 else []
    return {
        "network": name,
        "batch": batch,
        "positions": batch * LENGTH,
        **{f"{way}_ms": round(1000 * statistics.median(taken[way]), 2) for way in WAYS},
        "forms": dict(Counter(forms.values())),
        "device": named(device),
        "threads": torch.get_num_threads(),
        "commit": commit_at_start(),
    }


def named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def step(model: nn.Module, optimizers: Sequence[Optimizer], read: Tensor) -> Callable[[], None]:
    def one() -> None:
        model.zero_grad()
        model(input_ids=read, labels=read).loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return one


def timed(one: Callable[[], None], device: torch.device) -> float:
    began = time.perf_counter()
    one()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def table(records: Sequence[Record]) -> str:
    head = ["network", "positions in a batch", "as it was, ms"]
    head += ["in coordinates, ms", "in the fastest forms, ms", "as it was, by Muon, ms"]
    rows = []
    for record in records:
        plain, *others = (record[f"{way}_ms"] for way in WAYS)
        beside = [f"{taken:.0f} ({taken / plain:.2f})" for taken in others]
        rows.append([record["network"], f"{record['positions']:,}", f"{plain:.0f}", *beside])
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, metavar="N")
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--results", type=Path, default=RESULTS / "coordinate_steps.json")
    options = parser.parse_args()
    records = Records(options.results)
    if not options.table:
        for name, batch in product(shapes(), options.batches):
            if not records.has(network=name, batch=batch, device=named(options.device)):
                records.add(measure(name, batch, options.turns, options.device))
    print(table(records.records))


if __name__ == "__main__":
    main()
