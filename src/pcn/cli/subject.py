"""Which model a command is about, with which weights: the flags for it, and what they come to."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pcn.cli.command import WrongUsageError
from pcn.cli.settings_flags import DATA, MODEL, add_some_settings, checked_settings, given_settings
from pcn.errors import FileError
from pcn.saving.weight_files import load_weights_
from pcn.training.requests import build_model
from pcn.training.run_folder import MODEL as MODEL_FOLDER
from pcn.training.run_folder import SETTINGS
from pcn.training.settings import Settings
from pcn.training.world import device_named


@dataclass(frozen=True)
class Subject:
    """A model with its weights, on its device, and the settings that it was made from."""

    model: nn.Module
    settings: Settings
    device: torch.device
    has_data: bool  # whether the settings' data set was asked for, and is not only a default


def add_subject(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which model."""
    group = parser.add_argument_group("model")
    one = group.add_mutually_exclusive_group(required=True)
    add_some_settings(one, MODEL[:1], must_say=True)
    one.add_argument("--run", type=Path, metavar="DIR", help="a folder of pcn train: its model, weights and data")
    add_some_settings(group, MODEL[1:], must_say=True)
    group.add_argument(
        "--weights", type=Path, metavar="PATH", help="a .safetensors or .pt file, or a folder that pcn compress wrote"
    )
    group.add_argument("--device", metavar="NAME", help="cpu or cuda (default: cuda where there is one)")
    group.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's choice)")


def read_settings(arguments: argparse.Namespace) -> Settings:
    """The settings that the flags give, upon those of a run."""
    earlier = {} if arguments.run is None else _settings_of(arguments.run)
    return checked_settings({**earlier, **given_settings(arguments)})


def read_subject(arguments: argparse.Namespace) -> Subject:
    """Build the model and load its weights."""
    settings = read_settings(arguments)
    set_threads(arguments.threads)
    device = device_named(arguments.device)
    torch.manual_seed(settings.seed)
    model = build_model(settings)
    if arguments.weights is not None:
        _check_no_run(arguments.weights)
        load_weights_(model, arguments.weights)
    elif arguments.run is not None:
        load_weights_(model, _weights_of(arguments.run))
    return Subject(model.to(device).eval(), settings, device, hasattr(arguments, "data") or arguments.run is not None)


def _check_no_run(path: Path) -> None:
    """Raise where the folder of a run is given for weights: its plan stands in it, and the weights in another one."""
    if (path / SETTINGS).exists():
        model = path / MODEL_FOLDER
        or_else = f", or --weights {model}" if model.exists() else ""
        raise FileError(f"--weights {path}: this is a run of pcn train: give --run {path}{or_else}")


def _weights_of(run: Path) -> Path:
    """The weights with which a run has ended."""
    weights = run / MODEL_FOLDER
    if not weights.exists():
        raise FileError(f"the run in {run} has not ended: the same pcn train command takes it up again")
    return weights


def set_threads(count: int | None) -> None:
    """Have torch compute on so many CPU threads, where a number was given."""
    if count is None:
        return
    if count < 1:
        raise WrongUsageError(f"--threads {count}: give at least 1")
    torch.set_num_threads(count)


def _settings_of(run: Path) -> dict[str, Any]:
    """What a run's folder says about model and data; how it was trained and cut is its own affair."""
    try:
        found = json.loads((run / SETTINGS).read_text())
        return {name: found[name] for name in (*MODEL, *DATA) if name in found}
    except OSError as error:
        raise FileError(f"cannot read {run / SETTINGS}: {error.strerror}; give a folder of pcn train") from error
    except (ValueError, TypeError) as error:
        raise FileError(f"{run / SETTINGS} is damaged ({type(error).__name__}: {error})") from error
