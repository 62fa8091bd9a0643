"""``pcn analyze``: which layers of a model are wider than what they read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pcn.cli.command import Command
from pcn.cli.destination import make_room_for_file
from pcn.cli.looking import add_look, look
from pcn.cli.screen import Screen
from pcn.cli.settings_flags import add_some_settings
from pcn.cli.subject import read_subject
from pcn.plans.ranks import stats_for
from pcn.rank_rules import Rank
from pcn.statistics import Statistics
from pcn.statistics.table import rows, rule_shown
from pcn.training.requests import pcn_config


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look(parser)
    add_some_settings(parser.add_argument_group("what to keep"), ("rank", "exclude", "basis", "centred"))
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the statistics, for pcn plan and pcn compress")


def _run(arguments: argparse.Namespace, screen: Screen) -> None:
    subject = read_subject(arguments)
    make_room_for_file(arguments.out)
    config = pcn_config(subject.settings)
    stats, rank = look(arguments, subject, screen).stats, config.rank
    if arguments.out is not None:
        stats.save(arguments.out)
    stats = stats_for(config, stats)
    screen.text(stats.table(rank))
    if arguments.out is not None:
        screen.text(f"\nstatistics in {arguments.out}")
    screen.result(_document(stats, rank) | {"file": arguments.out and str(arguments.out)})


def _document(stats: Statistics, rank: Rank | None) -> dict[str, Any]:
    rule = rule_shown(rank)
    return {
        "rule": str(rule),
        "layers": [
            {
                "layer": row.layer,
                "width": row.width,
                "groups": row.groups,
                "directions": row.directions,
                "samples": stats.samples(row.layer),
                "trainable": row.trainable,
                "would_save": row.saved,
                "reason": row.reason,
            }
            for row in rows(stats, rule)
        ],
        "left_alone": stats.left_alone,
    }


COMMAND = Command(
    name="analyze",
    description="Let some batches go through a model and say which of its layers are wider than what they read:\n"
    "for each the width of its input, the directions that a rank rule would keep, and what that would save.\n"
    "The model is not changed.",
    examples=(
        "pcn analyze --model pcn.demo.network:DigitsNetwork --data digits",
        'pcn analyze --run runs/conv4-cifar10-0 --rank "variance > 0.1" --out stats.safetensors',
        "pcn analyze --model hf:bert --model-options num_hidden_layers=2 --inputs tokens.safetensors",
        "pcn analyze --model timm:resnet50 --weights resnet50.safetensors --data folder --data-dir photos --json",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
