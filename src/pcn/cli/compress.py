"""``pcn compress``: turn a model into its principal component network, and save it."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from pcn.cli.command import Command, WrongUsageError
from pcn.cli.destination import make_room
from pcn.cli.looking import add_look, add_network, look, plan_for
from pcn.cli.plan import document, show_prospect
from pcn.cli.screen import Screen
from pcn.cli.settings_flags import NETWORK
from pcn.cli.subject import read_subject
from pcn.cli.wording import advising_plan
from pcn.plans.prospect import prospect
from pcn.running.example import Example
from pcn.running.trees import tensors_in
from pcn.running.untouched import untouched
from pcn.saving.model_folder import load_plan, refuse_other_files, save


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look(parser)
    add_network(parser)
    parser.add_argument("--plan", type=Path, metavar="FILE", help="do what a plan says that pcn plan --out wrote")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="where plan.json and model.safetensors go"
    )


def _run(arguments: argparse.Namespace, screen: Screen) -> None:
    if arguments.plan is not None and (given := [name for name in NETWORK if hasattr(arguments, name)]):
        raise WrongUsageError(f"--plan says what to keep already: leave --{given[0].replace('_', '-')} out")
    subject = read_subject(arguments)
    with advising_plan():
        plan = None if arguments.plan is None else load_plan(arguments.plan)
    make_room(arguments.out)
    refuse_other_files(arguments.out)
    gradients = plan is not None and plan.needs_gradients
    looked = look(arguments, subject, screen, gradients=gradients)
    stats = looked.stats
    plan = plan or plan_for(subject, looked)
    expected = prospect(subject.model, plan, stats.example)
    before = _outputs(subject.model, stats.example)
    plan.apply_(subject.model, stats)
    change = _relative_change(before, _outputs(subject.model, stats.example))
    save(subject.model, arguments.out)
    screen.text(plan)
    show_prospect(expected, plan, screen)
    if change is not None:
        screen.text(f"\non the first batch, the outputs have moved by {change:.2%} of their size")
    screen.text(f"saved in {arguments.out}: pcn.load(model, {str(arguments.out)!r}), or pcn export --weights")
    screen.result(document(plan, expected) | {"folder": str(arguments.out), "relative_change": change})


@torch.no_grad()
def _outputs(model: torch.nn.Module, example: Example | None) -> list[Tensor]:
    """What the model makes of the first batch, as numbers that can be compared."""
    if example is None:
        return []
    with untouched(model):
        return [tensor.double() for tensor in tensors_in(example.call(model)) if tensor.is_floating_point()]


def _relative_change(before: list[Tensor], after: list[Tensor]) -> float | None:
    """How far outputs are from what they were, relative to their size; None where they have other shapes."""
    if not before or [one.shape for one in before] != [other.shape for other in after]:
        return None
    moved = sum(float((one - other).square().sum()) for one, other in zip(before, after, strict=True))
    size = sum(float(one.square().sum()) for one in before)
    return (moved / size) ** 0.5 if size > 0 else None


COMMAND = Command(
    name="compress",
    description="Look, plan and apply: turn a model into its principal component network, and save it without pickle.\n"
    "Train on with pcn.load in your own loop; pcn train switches in the middle of a run instead.",
    examples=(
        "pcn compress --run runs/DigitsNetwork-digits-0 --rank 95% --out small",
        "pcn compress --run runs/DigitsNetwork-digits-0 --stats stats.safetensors --plan plan.json --out small",
        "pcn compress --model hf:my-bert --inputs tokens.safetensors --params 0.5 --out small-bert",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
