"""Weights that somebody hands over: a safetensors file, a state dict saved by torch, or a saved folder."""

from __future__ import annotations

import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pcn.errors import FileError, file_trouble
from pcn.layers import layer_type, unwrap
from pcn.saving.model_folder import PLAN_FILE, WEIGHTS_FILE, load
from pcn.saving.weights import State, identity
from pcn.warn import warn

STATE_DICT = "model.state_dict() alone"
OLD_FILES = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # begin like this: PyTorch's before 1.6, which are no archives
TORCH_SUFFIXES = (".pt", ".pth", ".bin")
# What stands before all names of a wrapper's state dict.
WRAPPERS = {"module.": "DistributedDataParallel or an averaged model", "_orig_mod.": "torch.compile"}


def load_weights_(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Give a model the weights of a file, or the plan and weights of a folder that :func:`pcn.save` wrote.

    Every tensor must be there, under one of its names and with its shape; nothing is loaded otherwise. Layers whose
    bias is in the file alone get it, with a warning: those that :func:`pcn.fold_` could not take it from.
    """
    path = Path(path)
    if (path / PLAN_FILE).exists():
        return load(model, path)
    base = unwrap(model)
    tensors = read_state(path / WEIGHTS_FILE if path.is_dir() else path)
    modules = dict(base.named_modules())
    layers = {name: layer for name in tensors if (layer := _without_bias(modules, name)) is not None}
    gained = {name: nn.Parameter(layer.weight.new_empty(len(layer.weight))) for name, layer in layers.items()}
    own = base.state_dict(keep_vars=True) | gained
    _check_fits(path, tensors, own)
    for name, layer in layers.items():
        layer.bias = gained[name]
    if gained:
        names = ", ".join(name.removesuffix(".bias") for name in gained)
        warn(f"{path} holds a bias for layers that the model has without one, so that they have one now: {names}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
    return model


def read_state(path: Path) -> State:
    """Read a state dict; a file that would have to run code to be read is refused."""
    if not path.is_file():
        raise FileError(f"there is no file {path}: give a .safetensors or .pt file, or a folder that pcn.save wrote")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix not in TORCH_SUFFIXES:
            raise FileError(f"{path}: weights are read from .safetensors, {', '.join(TORCH_SUFFIXES)} files")
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise FileError(f"cannot read the weights {path}: {file_trouble(error)}") from error
    found = read_torch(path, STATE_DICT)
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        held = f"a dict of {', '.join(map(repr, list(found)[:4]))}" if isinstance(found, dict) else type(found).__name__
        raise FileError(f"{path} holds {held}, not a state dict; save {STATE_DICT}")
    return found


def read_torch(path: Path, expected: str) -> Any:
    """Read a file of PyTorch's without running any code in it; errors say what is ``expected`` to be saved."""
    try:
        with path.open("rb") as file:
            of_torch = file.read(len(OLD_FILES)) == OLD_FILES or is_zipfile(file)
    except OSError as error:
        raise FileError(f"cannot read {path}: {file_trouble(error)}") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes of anything else may lead the unpickler anywhere
        if of_torch and isinstance(error, UnpicklingError):
            raise FileError(f"{path} holds more than tensors; save {expected}") from error
        raise FileError(f"{path} is not a file that torch.save wrote, or not a whole one; save {expected}") from error


def _without_bias(modules: dict[str, nn.Module], name: str) -> Any:
    """The layer without a bias that a tensor of this name would be the bias of; None where there is none."""
    of, _, what = name.rpartition(".")
    layer: Any = modules.get(of)
    return layer if what == "bias" and layer_type(layer) is not None and layer.bias is None else None


def _wrapped(unknown: list[str]) -> str:
    """Say where names come from when a wrapper stands before all of them."""
    for prefix, wrapper in WRAPPERS.items():
        if unknown and all(name.startswith(prefix) for name in unknown):
            return (
                f"; names begin with {prefix!r} in the state dict of {wrapper}: save that of the model inside it, or "
                "take the prefix off"
            )
    return ""


def _check_fits(path: Path, tensors: State, own: State) -> None:
    there = {identity(own[name]) for name in tensors if name in own}  # files may hold a shared tensor once
    missing = [name for name, tensor in own.items() if identity(tensor) not in there]
    unknown = [name for name in tensors if name not in own]
    if missing or unknown:
        parts = [_first(missing, "lacks {} tensors of the model"), _first(unknown, "has {} that the model lacks")]
        said = " and ".join(part for part in parts if part)
        raise FileError(f"{path} holds the weights of another model: it {said}{_wrapped(unknown)}")
    for name, expected in own.items():
        if name in tensors and tensors[name].shape != expected.shape:
            raise FileError(
                f"{path} holds the weights of another model: {name!r} has shape {tuple(tensors[name].shape)} there and "
                f"{tuple(expected.shape)} in the model; build the model with the sizes it was trained with"
            )


def _first(names: list[str], said: str) -> str:
    return f"{said.format(f'{len(names):,}')} ({names[0]!r} first)" if names else ""
