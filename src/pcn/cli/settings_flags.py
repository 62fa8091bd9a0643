"""The settings of a run as flags: one for each field, with the field's own help."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, get_args, get_type_hints

from pcn.cli.command import WrongUsageError, wrong_usage
from pcn.training.requests import requested
from pcn.training.settings import BUDGET, Settings

MODEL = ("model", "model_options")
DATA = ("data", "data_dir", "data_options", "scale", "seed", "calibration_samples")
LOOK = ("analysis_mode", "analysis_pool", "analysis_fraction")
KEEP = ("output_rank", "keep_outputs", "layers", "exclude")
COORDINATES = ("order", "basis", "precondition", "sized_for", "centred", "kernel_rank")
HOW = (*COORDINATES, "skip_larger", "train_basis", "keep_dropped")
NETWORK = ("pcn", "rank", *BUDGET, *KEEP, *HOW)
STEP = ("batch", "optimizer", "momentum")
GROUPS = {  # of what ``pcn train`` takes, in the order in which one decides; what is in none is how it trains
    "the model and its data": (*MODEL, "data", "data_dir", "data_options", "scale", "augment"),
    "how it trains": (),
    "what to keep, at the switch": NETWORK,
    "when it switches": ("switch_at", "carry_state", "switch_rate", "fade_epochs", "recalibrate"),
    "how to look": ("calibration_samples", *LOOK, "measure_every"),
    "checkpoints, and which epoch it ends with": ("keep_best", "patience", "min_delta", "checkpoint_every"),
}

Flags = argparse._ActionsContainer  # a parser, or a group of it


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting; only those that are given end up in the parsed arguments."""
    grouped = {name for names in GROUPS.values() for name in names}
    rest = tuple(each.name for each in fields(Settings) if each.name not in grouped)
    for title, names in GROUPS.items():
        add_some_settings(parser.add_argument_group(title), names or rest)


def add_some_settings(flags: Flags, names: Iterable[str], *, must_say: bool = False) -> None:
    """Add the flags of some settings, so that they mean the same in every command.

    Those that a person must say have no default.
    """
    hints = get_type_hints(Settings)
    known = {each.name: each for each in fields(Settings)}
    for name in names:
        flag = "--" + name.replace("_", "-")
        flags.add_argument(flag, dest=name, default=argparse.SUPPRESS, **_how(known[name], hints[name], must_say))


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags."""
    names = {each.name for each in fields(Settings)} - {"settings"}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    for name, value in given.items():
        if isinstance(value, list) and get_type_hints(Settings)[name] == dict[str, Any]:
            given[name] = dict(_pair(name, item) for item in value)
    return given


def checked_settings(given: Mapping[str, Any]) -> Settings:
    """Settings by their names; what no model could be cut by is refused as wrong usage."""
    with wrong_usage():
        settings = Settings.from_mapping(given)
        requested(settings)
    return settings


def _how(each: Field[Any], hint: Any, must_say: bool) -> dict[str, Any]:
    silent = must_say or each.default in (None, MISSING, ())
    default = "" if silent else f" (default: {_shown(each.default)})"
    text = {"help": (each.metadata["help"] + default).replace("%", "%%")}
    if bool in (hint, *get_args(hint)):
        return {**text, "action": argparse.BooleanOptionalAction}
    if hint == dict[str, Any]:
        return {**text, "nargs": "+", "metavar": "KEY=VALUE"}
    if "choices" in each.metadata:
        return {**text, "choices": each.metadata["choices"]}
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind in (int, float, str)]
    several = {"nargs": "+"} if isinstance(each.default, tuple) else {}
    if {int, float} <= set(kinds):
        return {**text, "type": number, "metavar": "X"}
    return {**text, **several, "type": kinds[0], "metavar": {int: "N", float: "X", str: "TEXT"}[kinds[0]]}


def number(text: str) -> int | float:
    """A number as Python reads it: 1 is one, and 1.0 a fraction."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _pair(name: str, item: str) -> tuple[str, Any]:
    key, sign, value = item.partition("=")
    if not sign:
        raise WrongUsageError(f"--{name.replace('_', '-')} {item!r}: give key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
