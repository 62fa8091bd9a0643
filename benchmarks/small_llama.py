"""A small Llama on the bytes of a text: its PCN within a budget, and what a user would do instead.

    python benchmarks/small_llama.py --text FILE    # the grid, then three seeds: an hour on one core
    python benchmarks/small_llama.py --table

Two decoder layers read 64 bytes at a time; AdamW, one cycle of the rate, 900 steps. The PCN switches after 150 of them
and then trains two fifths of the parameters. Beside it stand Llamas that train as many numbers, or store and multiply
about as many as the PCN with its bases: narrower ones from scratch, and the wide one with its weights factorised by
SVD after 150 steps, all but the last layer's, to the same share of the full rank. What coordinates that are sized for
Adam give by themselves is shown by a narrow Llama, and the wide one, that are rewritten in all of them; that gives
layers biases, which a narrow Llama with such, from scratch, stands beside. Where inputs are not centred no layer gains
a bias, and folding gives the Llama back as it was. A budget that is two-sided chooses for every layer whether inputs or
outputs get a basis. The wide Llama, the narrow one and the PCN are trained by Muon, too, whose steps suit by other
means. Each has the best of the learning rates, by the loss of a seed of its own on held-out bytes; other bytes are the
test.
Results: benchmarks/results/small_llama.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from peers import RESULTS  # which finds the experiments' modules as well

# isort: split
import pcn
from grid_rates import GRID_SEED, best_rate, find
from grouping import mean
from jobs import run_all
from markdown_tables import markdown
from pcn.costs.count import count, flops_per_sample
from peers.factors import all_layers, factorise_
from peers.svd import full_rank, ranks_for
from records import Record, Records, commit_at_start
from texts import HELD_OUT, LENGTH, TRAINED, Switch, adamw, loss_on, pieces, read_bytes, train

HIDDEN, INNER = 192, 512
HEADS, LAYERS = 4, 2
SHARE = 0.4  # of the parameters, that the PCN trains
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
CALIBRATION = 16  # batches
TEXT = TRAINED + 2 * HELD_OUT  # to train on, for validation, and the test
PARENT, PCN = "wide", "PCN within a budget"
NARROW, NARROW_STORED = "narrow, as many trained", "narrow, as many stored"
LOW_RANK, LOW_RANK_STORED = "low rank by SVD, as many trained", "low rank by SVD, as many stored"
BIASED = "narrow, as many trained, with biases"
NARROW_ROTATED, ROTATED = (
    "narrow, as many trained, in sized principal coordinates",
    "wide, in sized principal coordinates",
)
UNCENTRED = {name: f"{name}, not centred" for name in (PCN, ROTATED, NARROW_ROTATED)}
AS_STORED = (NARROW_STORED, LOW_RANK_STORED)  # as large as the PCN of the grid at its best rate
EITHER_SIDE = "PCN within a budget, on either side"
BESIDE = (PARENT, PCN, NARROW, BIASED, NARROW_ROTATED, NARROW_STORED, LOW_RANK, LOW_RANK_STORED, ROTATED)
BY_MUON = {name: f"{name}, by Muon" for name in (NARROW, PARENT, PCN)}
NETWORKS = (*BESIDE, *UNCENTRED.values(), EITHER_SIDE, *BY_MUON.values())
MUONS_RATES = (*RATES, 3e-2)  # its steps are as large as AdamW's, and it is best at larger ones


def llama(hidden: int = HIDDEN, inner: int = INNER, *, biases: bool = False) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    tokens = {"vocab_size": 256, "bos_token_id": None, "eos_token_id": None, "max_position_embeddings": LENGTH}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **tokens, attention_bias=biases, mlp_bias=biases))


def parameters(hidden: int, inner: int) -> int:
    """How many such a Llama has without biases: embedding and last layer, attention and MLPs, norms."""
    return 2 * 256 * hidden + LAYERS * (4 * hidden**2 + 3 * hidden * inner + 2 * hidden) + hidden


def narrow(limit: int) -> tuple[int, int]:
    """The widest of about these proportions that has no more parameters; what is left makes its MLPs wider."""
    step = 2 * HEADS  # rotary embeddings turn pairs of each head's channels
    shapes = ((hidden, round(hidden * INNER / HIDDEN)) for hidden in range(step, HIDDEN + 1, step))
    hidden, inner = max(shape for shape in shapes if parameters(*shape) <= limit)
    return hidden, inner + (limit - parameters(hidden, inner)) // (LAYERS * 3 * hidden)


@dataclass(frozen=True)
class Run:
    """One network at one rate on one seed; ``limit`` is how many numbers it may train or store."""

    network: str
    seed: int
    rate: float
    limit: int
    text: Path


def run(each: Run) -> Record:
    data = bytes_of(each.text)
    torch.manual_seed(each.seed)
    is_narrow = each.network.startswith("narrow")
    shape = narrow(each.limit) if is_narrow else (HIDDEN, INNER)
    model = llama(*shape, biases=each.network == BIASED)
    switch = switching(each, model, data[:TRAINED])
    drawn, make = torch.Generator().manual_seed(each.seed), muon if each.network in BY_MUON.values() else adamw
    train(model, each.rate, data[:TRAINED], drawn, switch, make)
    cost = count(model)
    return {
        "network": each.network,
        "seed": each.seed,
        "learning_rate": each.rate,
        "trainable_params": cost.trainable,
        "total_params": cost.total,
        "flops_per_sample": flops_per_sample(model, {"input_ids": torch.zeros(1, LENGTH, dtype=torch.long)}),
        "validation_loss": loss_on(model, data[TRAINED : TRAINED + HELD_OUT]),
        "test_loss": None if each.seed == GRID_SEED else loss_on(model, data[TRAINED + HELD_OUT :]),
        "commit": commit_at_start(),
    }


@cache
def bytes_of(text: Path) -> Tensor:
    return read_bytes(text, TEXT)


def muon(model: nn.Module, rate: float) -> list[Optimizer]:
    """Muon for the matrices of the layers, with steps as large as AdamW's, and AdamW for all else, as is usual."""
    own = {id(layer.weight) for _, layer in all_layers(model)[:-1]}
    inner, other = ([p for p in model.parameters() if (id(p) in own) == is_own] for is_own in (True, False))
    steps = torch.optim.Muon(inner, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    return [steps, torch.optim.AdamW(other, lr=rate)]


def switching(each: Run, model: nn.Module, data: Tensor) -> Switch | None:
    """What happens to the network in the middle of training, if anything."""
    in_all = pcn.PCNConfig(rank=1.0, skip_larger=False, sized_for="adam")
    plainly = pcn.Budget(params=each.limit, config=pcn.PCNConfig(centred=False))
    changes: Mapping[str, Callable[..., None]] = {
        PCN: partial(compress, asked=pcn.Budget(params=each.limit)),
        EITHER_SIDE: partial(compress, asked=pcn.Budget(params=each.limit, two_sided=True)),
        NARROW_ROTATED: partial(compress, asked=in_all),
        ROTATED: partial(compress, asked=in_all),
        BY_MUON[PCN]: partial(compress, asked=pcn.Budget(params=each.limit)),
        UNCENTRED[PCN]: partial(compress, asked=plainly),
        **dict.fromkeys(
            (UNCENTRED[ROTATED], UNCENTRED[NARROW_ROTATED]), partial(compress, asked=replace(in_all, centred=False))
        ),
        LOW_RANK: partial(low_rank, limit=each.limit),
        LOW_RANK_STORED: partial(low_rank, limit=each.limit),
    }
    change = changes.get(each.network)
    return None if change is None else partial(change, model, data)


def compress(
    model: nn.Module,
    data: Tensor,
    optimizers: Sequence[Optimizer],
    _: torch.Generator,
    *,
    asked: pcn.Budget | pcn.PCNConfig,
) -> None:
    drawn = torch.Generator().manual_seed(GRID_SEED)  # of its own: every network reads the same pieces in training
    batches = [{"input_ids": pieces(data, drawn)} for _ in range(CALIBRATION)]
    pcn.compress_(model, batches, asked, optimizer=optimizers)


def low_rank(model: nn.Module, _: Tensor, optimizers: Sequence[Optimizer], __: torch.Generator, *, limit: int) -> None:
    """Factors in place of weights; the optimizer begins anew with them and keeps its state of everything else."""
    layers = dict(all_layers(model)[:-1])
    factorise_(model, ranks_for(model, layers, {name: float(full_rank(layers[name])) for name in layers}, limit))
    there, (optimizer,) = set(model.parameters()), optimizers
    for gone in [parameter for parameter in optimizer.state if parameter not in there]:
        del optimizer.state[gone]
    optimizer.param_groups[0]["params"] = list(model.parameters())


def do(records: Records, seeds: Sequence[int], options: argparse.Namespace) -> None:
    """What is missing, each stage once those are there that it depends on."""
    for stage in stages(records, seeds, options.text):
        missing = [each for each in stage if find(records.records, each.network, each.seed, each.rate) is None]
        if failed := run_all(missing, run, partial(done, records), together=options.together, reuse=True):
            raise SystemExit(f"{failed} of {len(missing)} runs failed")


def stages(records: Records, seeds: Sequence[int], text: Path) -> Iterator[list[Run]]:
    """The grid, then the grid of those that are as large as the PCN, then the seeds at the rates that it has chosen."""
    trained = int(SHARE * parameters(HIDDEN, INNER))
    limits = dict.fromkeys(NETWORKS, trained)
    yield [
        Run(name, GRID_SEED, rate, trained, text)
        for name in NETWORKS
        for rate in rates_of(name)
        if name not in AS_STORED
    ]
    limits |= dict.fromkeys(AS_STORED, stored(records.records))
    yield [Run(name, GRID_SEED, rate, limits[name], text) for name, rate in product(AS_STORED, RATES)]
    rates = {name: best(records.records, name) for name in NETWORKS}
    yield [Run(name, seed, rates[name], limits[name], text) for seed, name in product(seeds, NETWORKS)]


def stored(records: Sequence[Record]) -> int:
    """How many numbers the PCN of the grid stores at its best rate."""
    found = find(records, PCN, GRID_SEED, best(records, PCN))
    assert found is not None
    return int(found["total_params"])


def done(records: Records, record: Record) -> None:
    records.add(record)
    loss = record["validation_loss"]
    print(f"{record['network']} seed {record['seed']} rate {record['learning_rate']:g}: {loss:.4f}", flush=True)


def best(records: Sequence[Record], name: str) -> float:
    """The rate with the lowest loss on the held-out bytes."""
    return best_rate(records, name, rates_of(name), "validation_loss", best=min)


def rates_of(name: str) -> tuple[float, ...]:
    """The grid of a network."""
    return MUONS_RATES if name in BY_MUON.values() else RATES


def table(records: Sequence[Record]) -> str:
    """The means over seeds, and the differences from two networks, seed by seed: of as many parameters, and of all."""
    final = [record for record in records if record["seed"] != GRID_SEED]
    losses = {(record["network"], record["seed"]): record["test_loss"] for record in final}
    head = ["network", "rate", "trained", "stored", "MFLOPs", "test loss"]
    head += [f"minus {each}, seed by seed" for each in ("narrow", "wide")]
    rows = []
    for name in NETWORKS:
        own = sorted((record for record in final if record["network"] == name), key=lambda record: record["seed"])
        if own:
            counts = [f"{mean(own, key):,.0f}" for key in ("trainable_params", "total_params")]
            flops, loss = f"{mean(own, 'flops_per_sample') / 1e6:.0f}", f"{mean(own, 'test_loss'):.3f}"
            beside = [minus(losses, name, other) for other in (NARROW, PARENT)]
            rows.append([name, f"{own[0]['learning_rate']:g}", *counts, flops, loss, *beside])
    return markdown(head, rows)


def minus(losses: Mapping[tuple[str, int], float], ours: str, theirs: str) -> str:
    """One network's losses minus another's, seed by seed; nothing beside itself."""
    seeds = sorted(seed for name, seed in losses if name == ours and (theirs, seed) in losses)
    return "" if ours == theirs else ", ".join(f"{losses[ours, seed] - losses[theirs, seed]:+.3f}" for seed in seeds)


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results)
    if options.table:
        print(table(records.records))
    elif options.text is None:
        raise SystemExit(f"give --text, a file of at least {TEXT:,} bytes, or --table")
    else:
        do(records, options.seeds, options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help=f"a text of at least {TEXT:,} bytes")
    parser.add_argument("--seeds", nargs="*", type=int, default=range(3), metavar="SEED", help="none: the grid alone")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="runs at once")
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--results", type=Path, default=RESULTS / "small_llama.json")
    return parser


if __name__ == "__main__":
    main()
