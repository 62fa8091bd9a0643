"""``pcn export``: a model in a form that other programs read."""

from __future__ import annotations

import argparse
from pathlib import Path

from pcn.cli.batches import add_batches, read_batches
from pcn.cli.command import Command, WrongUsageError
from pcn.cli.destination import make_room_for_file
from pcn.cli.screen import Screen
from pcn.cli.subject import Subject, add_subject, read_subject
from pcn.cli.wording import advising_flags
from pcn.running.example import Example
from pcn.running.failures import saying_which
from pcn.running.untouched import untouched
from pcn.saving.exports import Exported, export_folded, export_onnx, export_program, export_state

TO = {"onnx": ".onnx", "torch.export": ".pt2", "safetensors": ".safetensors", "folded": ".safetensors"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_subject(parser)
    add_batches(parser, "an example of the input")
    parser.add_argument("--to", choices=TO, required=True, help="folded: safetensors of the original architecture")
    parser.add_argument(
        "--form", choices=("factored", "dense"), default="factored",
        help="two small layers for each, or one of the original size (default: factored)",
    )  # fmt: skip
    parser.add_argument("--dynamic-batch", action="store_true", help="let the exported model take batches of any size")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="the file to write")


def _run(arguments: argparse.Namespace, screen: Screen) -> None:
    needs_example = arguments.to in ("onnx", "torch.export")
    if arguments.dynamic_batch and not needs_example:
        raise WrongUsageError(f"--dynamic-batch goes with --to onnx and torch.export, not with {arguments.to}")
    if arguments.out.suffix != TO[arguments.to]:
        raise WrongUsageError(f"--out {arguments.out}: what --to {arguments.to} writes ends in {TO[arguments.to]}")
    subject = read_subject(arguments)
    make_room_for_file(arguments.out)
    given = subject.has_data or arguments.inputs is not None or arguments.random_inputs is not None
    example = Example.of(read_batches(arguments, subject, "what goes in")[0]) if given or needs_example else None
    if example is not None:
        with advising_flags(arguments, subject), saying_which("what goes in", example), untouched(subject.model):
            example.call(subject.model)
    done = _export(arguments, subject, example)
    size = done.path.stat().st_size
    difference = "" if done.difference is None else f", within {done.difference:.0e} of an output's largest number"
    screen.text(f"{done.path}: {size:,} bytes, {done.stored:,} stored parameters{difference}")
    for note in done.notes:
        screen.warn(note)
    screen.result(
        {
            "file": str(done.path),
            "to": arguments.to,
            "bytes": size,
            "stored_params": done.stored,
            "difference": done.difference,
            "notes": done.notes,
        }
    )


def _export(arguments: argparse.Namespace, subject: Subject, example: Example | None) -> Exported:
    model, path, form = subject.model, arguments.out, arguments.form
    if arguments.to == "folded":
        return export_folded(model, example, path)
    if arguments.to == "safetensors" or example is None:
        return export_state(model, example, path, form)
    write = export_onnx if arguments.to == "onnx" else export_program
    return write(model, example, path, form, dynamic_batch=arguments.dynamic_batch)


COMMAND = Command(
    name="export",
    description="Write a trained model, compressed or not, with stock layers only: for ONNX, torch.export, as a plain\n"
    "state dict, or folded back into the original architecture. What is written is run once and must compute\n"
    "what the model computes.",
    examples=(
        "pcn export --run runs/DigitsNetwork-digits-0 --to onnx --out digits.onnx",
        "pcn export --model conv4 --weights small --to torch.export --random-inputs 2,3,32,32 --dynamic-batch"
        " --out conv4.pt2",
        "pcn export --model conv4 --weights small --to folded --out conv4.safetensors",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
