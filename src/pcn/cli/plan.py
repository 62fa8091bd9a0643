"""``pcn plan``: what a switch would do to a model, before anything is changed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pcn.cli.batches import read_batches
from pcn.cli.command import Command, WrongUsageError
from pcn.cli.destination import make_room_for_file
from pcn.cli.looking import add_look, add_network, look, plan_for
from pcn.cli.screen import Screen
from pcn.cli.subject import Subject, read_subject
from pcn.errors import FileError
from pcn.planner.budget import Budget
from pcn.plans.making import make_plan
from pcn.plans.plan import Plan
from pcn.plans.prospect import Prospect, prospect
from pcn.running.example import Example
from pcn.training.requests import requested
from pcn.whole_files import write_whole


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look(parser)
    add_network(parser)
    parser.add_argument(
        "--shapes-only", action="store_true", help="measure nothing: ranks must be numbers or fractions"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the plan as JSON, for pcn compress")


def _run(arguments: argparse.Namespace, screen: Screen) -> None:
    subject = read_subject(arguments)
    make_room_for_file(arguments.out)
    plan, example = _from_shapes(arguments, subject) if arguments.shapes_only else _measured(arguments, subject, screen)
    if arguments.out is not None:
        write_plan(plan, arguments.out)
    expected = prospect(subject.model, plan, example)
    screen.text(plan)
    show_prospect(expected, plan, screen)
    if arguments.out is not None:
        screen.text(f"\nplan in {arguments.out}")
    screen.result(document(plan, expected) | {"file": arguments.out and str(arguments.out)})


def _measured(arguments: argparse.Namespace, subject: Subject, screen: Screen) -> tuple[Plan, Example | None]:
    looked = look(arguments, subject, screen)
    return plan_for(subject, looked), looked.stats.example


def _from_shapes(arguments: argparse.Namespace, subject: Subject) -> tuple[Plan, Example | None]:
    wish = requested(subject.settings)
    if isinstance(wish, Budget):
        raise WrongUsageError("a budget needs to see what the layers read: leave --shapes-only out")
    asked = subject.has_data or arguments.inputs is not None or arguments.random_inputs is not None
    example = Example.of(read_batches(arguments, subject)[0]) if asked else None
    return make_plan(subject.model, None, wish, example=example), example


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan whole, or say why not."""
    try:
        write_whole(path, plan.to_json().encode())
    except OSError as error:
        raise FileError(f"cannot write the plan {path}: {error.strerror or error}") from error


def show_prospect(expected: Prospect, plan: Plan, screen: Screen) -> None:
    """Print what the whole model has before and after, and what a training step takes where that was measured."""
    screen.heading("The whole model")
    rows = [(what, f"{b:,}", f"{a:,}", f"{a / max(b, 1):.1%}") for what, b, a in expected.rows()]
    if plan.usage is not None:
        rows += [(what, f"{b:,.3f}", f"{a:,.3f}", f"{a / b:.1%}" if b else "") for what, b, a in plan.usage.rows()]
    screen.table(["", "before", "after", ""], rows)
    if expected.flops_reason is not None:
        screen.text(f"FLOPs are not known: {expected.flops_reason}")


def document(plan: Plan, expected: Prospect) -> dict[str, Any]:
    """The same as JSON."""
    return {"before": expected.before.as_dict(), "after": expected.after.as_dict(), "plan": json.loads(plan.to_json())}


COMMAND = Command(
    name="plan",
    description="Say, layer by layer, what a switch would keep and why the other layers are left alone, and what the\n"
    "whole model trains, stores and computes before and after. The model is not changed: this is the dry run\n"
    "of pcn compress, and of the switch in pcn train.",
    examples=(
        "pcn plan --run runs/DigitsNetwork-digits-0 --rank 95%",
        "pcn plan --run runs/DigitsNetwork-digits-0 --stats stats.safetensors --params 0.25 --out plan.json",
        "pcn plan --model wide_resnet20 --pcn wide_resnet20-pcn1 --shapes-only --random-inputs 2,3,32,32",
        'pcn plan --model conv4 --data cifar10 --data-dir data --layers fc1=50 "conv*=0.5" --exclude conv1 --json',
    ),
    add_arguments=_add_arguments,
    run=_run,
)
