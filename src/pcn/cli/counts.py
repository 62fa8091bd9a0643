"""``pcn counts``: the sizes of the paper's networks, each built and transformed on the meta device."""

from __future__ import annotations

import argparse

import torch
from torch import nn

from pcn import models
from pcn.cli.command import Command
from pcn.cli.screen import Screen
from pcn.costs.count import count
from pcn.plans.making import make_plan
from pcn.running.example import Example

NETWORKS = tuple(name for name in models.names() if name != "mnist_network")  # the paper gives no figure for that one


def build(name: str) -> nn.Module:
    """Build one of the paper's networks on the meta device; a PCN from its parent, by a plan of shapes only."""
    with torch.device("meta"):
        model, images = models.build(name), models.example(name)
    config = models.config(name)
    if config is not None:
        make_plan(model, None, config, example=Example.of(images)).reshape_(model)
    return model


def _run(arguments: argparse.Namespace, screen: Screen) -> None:
    rows = []
    with screen.progress(len(NETWORKS)) as bar:
        for name in NETWORKS:
            bar.update(bar.task_ids[0], description=name)
            cost = count(build(name))
            rows.append({"network": name, "total": cost.total, "trainable": cost.trainable})
            bar.advance(bar.task_ids[0])
    screen.table(["network", "total", "trainable"], [list(row.values()) for row in rows])
    screen.result(rows)


COMMAND = Command(
    name="counts",
    description="Build the paper's networks, transform those that are PCNs, and count their parameters: the trainable\n"
    "ones, and all that are stored, with running statistics, bases and means.",
    examples=("pcn counts", "pcn counts --json"),
    add_arguments=lambda parser: None,
    run=_run,
)
