"""Compare principal component networks with other ways to a small network, on CIFAR-10.

    python benchmarks/peers.py --data DIR --together 6 --time-limit 1700       # on a GPU under NVIDIA's MPS
    python benchmarks/peers.py --data DIR --solo --together 6                  # seconds, joules: each trains alone
    python benchmarks/peers.py --data DIR --methods narrow pcn-planner --sizes 1094154 --epochs 60 --list

Every method gets the same grid of learning rates and weight decays, on the validation split; then runs with the same
seeds, which fork from one parent where they switch. Results are added to benchmarks/results/peers.json as runs finish
and are skipped when they are there; a run that was stopped goes on from its last checkpoint. One that diverges is
recorded with null for its accuracy. A solo pass times only runs that have an accuracy, over a few epochs.
`python benchmarks/peers_report.py` draws and prints what came out.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable

from peers import RESULTS, folder
from peers.comparison import Comparison
from peers.order import METHODS, Run, in_order
from peers.parents import PARENTS
from peers.recount import recount
from peers.results import Results


def main() -> None:
    options = arguments().parse_args()
    runs = [run for run in in_order() if wanted(run, options)]
    comparison = Comparison(Results(options.results), options)
    if options.recount:
        show(f"{run}: its operations were counted wrong" for run in recount(comparison.results))
    elif options.list:
        show(map(comparison.described, comparison.left(runs)))
    elif complaint := comparison.do(runs):
        raise SystemExit(complaint)


def show(lines: Iterable[str]) -> None:
    """Print lines as long as somebody reads them."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:  # which Python would meet once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def wanted(run: Run, options: argparse.Namespace) -> bool:
    """Whether a run was asked for; the grid of a method is, when the method is."""
    method = run.method in options.methods and run.parent in options.parents
    final = run.epochs in (options.epochs or [run.epochs]) and run.target in (options.sizes or [run.target])
    return method and (run.point is not None or (final and run.seed in (options.seeds or [run.seed])))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="NAME")
    parser.add_argument("--parents", nargs="+", choices=list(PARENTS), default=list(PARENTS), metavar="NAME")
    parser.add_argument("--sizes", nargs="+", type=int, metavar="PARAMETERS")
    parser.add_argument("--epochs", nargs="+", type=int)
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="runs at once")
    parser.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS", help="for everything")
    parser.add_argument("--run-limit", type=float, default=7200, metavar="SECONDS", help="for one run")
    parser.add_argument("--solo", action="store_true", help="time runs that have an accuracy, each alone on the GPU")
    parser.add_argument("--eager", action="store_true", help="do not compile the training step")
    parser.add_argument("--fused", action="store_true", help="fuse principal component networks, however short the run")
    parser.add_argument("--list", action="store_true", help="only say what is left to do, and what that waits for")
    parser.add_argument("--recount", action="store_true", help="only count operations of recorded networks again")
    parser.add_argument("--work", type=folder, default="runs/peers", help="folder for checkpoints")
    parser.add_argument("--results", type=folder, default=RESULTS, help="folder for results")
    return parser


if __name__ == "__main__":
    main()
