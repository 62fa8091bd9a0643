"""Operations of recorded networks counted again from their plans, every layer in the form that it has by itself.

Runs up to commit 030a2f1 counted compiled layers in the form in which the GPU was fastest, which may be the wide one,
and runs up to fefa62f the product that makes a kernel out of patterns, the same for all samples, for each of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from pcn import models
from pcn.cli.counts import build
from pcn.costs.count import flops_per_sample
from pcn.whole_files import write_whole
from peers.networks import planned
from peers.order import Run
from peers.parents import IMAGES, PARENTS
from peers.plans import PLANNER, plan_name, planner_run
from peers.results import Results
from records import alone_in


def recount(results: Results) -> list[Run]:
    """Correct the final records of networks that can be built from a plan; return the runs that were wrong.

    Whatever else the file says stays: nothing is trained here.
    """
    wrong = []
    with alone_in(results.folder):
        held = json.loads(results.final.path.read_text())
        for record in held["records"]:
            run = Run(*(record[name] for name in ("method", "parent", "target", "epochs", "seed")))
            counted = operations(results, run)
            if counted is not None and counted != record["flops_per_sample"]:
                record["flops_per_sample"] = counted
                wrong.append(run)
        write_whole(results.final.path, (json.dumps(held, indent=1) + "\n").encode())
    return wrong


def operations(results: Results, run: Run) -> float | None:
    """What a network computes for one sample; None where no plan of it is there."""
    parent = PARENTS[run.parent]
    if run.method in (PLANNER, "pcn-from-scratch") and planner_run(run) in results.plans:
        of_parent = parent.recipe(run.seed, run.epochs, Path())
        name = plan_name(planner_run(run))
        model = planned(of_parent.model, of_parent.model_options, str(results.plans.path), name)
        return flops_per_sample(model, torch.zeros(1, *IMAGES))
    if run.method == "pcn-paper":
        name = parent.paper[run.target]["pcn"]
        return flops_per_sample(build(name), models.example(name, batch=1).to("meta"))
    return None
