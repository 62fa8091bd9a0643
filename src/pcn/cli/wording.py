"""What the library advises in Python, in flags."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from pcn.cli.subject import Subject
from pcn.errors import FileError, PlanError, StatisticsError
from pcn.planner.measuring import ONE_BATCH
from pcn.plans.plan import check_untransformed
from pcn.running.failures import BATCHES, ONE_SAMPLE


@contextmanager
def advising_flags(arguments: argparse.Namespace, subject: Subject) -> Iterator[None]:
    """Say which flags to change where a model fails on its batches."""
    try:
        with advising_samples(arguments):
            yield
    except StatisticsError as error:
        said = str(error).removesuffix(BATCHES).removesuffix(ONE_BATCH)
        if said == str(error):
            raise
        raise StatisticsError(said + _fitting_inputs(arguments, subject)) from error


@contextmanager
def advising_plan() -> Iterator[None]:
    """Say which command writes what ``--plan`` reads, where a file is something else."""
    try:
        yield
    except FileError as error:
        raise FileError(f"--plan: {str(error).partition('; ')[0]}; give a file that pcn plan --out wrote") from error


@contextmanager
def advising_samples(arguments: argparse.Namespace) -> Iterator[None]:
    """Say which flags to change where batch norm gets a single sample."""
    try:
        yield
    except StatisticsError as error:
        batch, found, advice = str(error).partition(ONE_SAMPLE)
        if not found:
            raise
        several = "give --batch 2 or more" if batch.startswith("the batch") else _another_number(arguments)
        or_else = ", or --analysis-mode eval" if "eval" in advice else ""
        raise StatisticsError(batch + ONE_SAMPLE + several + or_else) from error


def _another_number(arguments: argparse.Namespace) -> str:
    if getattr(arguments, "inputs", None) is not None:
        return f"save a sample more or less in {arguments.inputs}"
    flag = "--random-inputs" if getattr(arguments, "random_inputs", None) is not None else "--calibration-samples"
    return f"give {flag} a sample more or less"


def _fitting_inputs(arguments: argparse.Namespace, subject: Subject) -> str:
    shapes = "in the shapes that the model takes, samples first"
    if arguments.inputs is not None:
        return f"save the tensors of {arguments.inputs} by the names of the model's arguments, {shapes}"
    if arguments.random_inputs is not None:
        return f"give --random-inputs {shapes}, and several by the names of the model's arguments (NAME=SHAPE)"
    return f"give --inputs FILE with what the model takes in place of --data {subject.settings.data}"


def check_plain(arguments: argparse.Namespace, subject: Subject) -> None:
    """Raise where the weights are those of a network that was cut already, and say how it gets plain layers back."""
    try:
        check_untransformed(subject.model)
    except PlanError as error:
        source = arguments.weights or arguments.run
        if source is None:
            raise
        raise PlanError(
            f"the model in {source} has been transformed already: write it with plain layers (pcn export "
            f"{_same_model(arguments, subject)} --to folded --out folded.safetensors), then give --weights "
            "folded.safetensors here"
        ) from error


def _same_model(arguments: argparse.Namespace, subject: Subject) -> str:
    """The flags that the model was given by."""
    flags = [f"--run {arguments.run}"] if arguments.run is not None else [f"--model {subject.settings.model}"]
    flags += ["--model-options ..."] if hasattr(arguments, "model_options") else []
    flags += [f"--weights {arguments.weights}"] if arguments.weights is not None else []
    return " ".join(flags)
