"""Saving and loading: a folder with plan.json and model.safetensors, and no pickle anywhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_model
from torch import nn

from pcn.errors import FileError, PCNError, PlanError
from pcn.layers import unwrap
from pcn.plan import Plan, get_plan
from pcn.skeleton import skeleton

PLAN_FILE = "plan.json"
WEIGHTS_FILE = "model.safetensors"


def save(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a transformed model's plan and weights into a folder; an older one there is replaced only at the end."""
    base = unwrap(model)
    plan = get_plan(base)
    if plan is None:
        raise PlanError("this model carries no plan: apply one first (pcn.compress_), or save a plain model as usual")
    target = Path(folder)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
            fresh = Path(scratch) / "new"
            fresh.mkdir()
            (fresh / PLAN_FILE).write_text(plan.to_json(), encoding="utf-8")
            save_model(base, str(fresh / WEIGHTS_FILE), metadata={"format": "pcn"})
            _put(fresh, target, Path(scratch) / "old")
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot save to {target}: {error}; what was there before is untouched") from error


def _put(fresh: Path, target: Path, aside: Path) -> None:
    """Move the finished folder into place; only a folder that we wrote is ever replaced."""
    if target.exists():
        if not target.is_dir() or {p.name for p in target.iterdir()} - {PLAN_FILE, WEIGHTS_FILE}:
            raise FileError(f"{target} exists and holds other files; give an empty or a new folder")
        os.replace(target, aside)
    try:
        os.replace(fresh, target)
    except OSError:
        if aside.exists():
            os.replace(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def load(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """Give a freshly built original model the saved plan and weights, in place, and return it.

    The model is left as it was when anything about the files does not fit.
    """
    base = unwrap(model)
    target = Path(folder)
    plan = load_plan(target / PLAN_FILE)
    tensors = _read_tensors(target / WEIGHTS_FILE, _planned_state(plan, base))
    plan.reshape_(base)
    on_meta = any(tensor.is_meta for tensor in base.state_dict().values())
    base.load_state_dict(tensors, strict=False, assign=on_meta)
    return model


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan from a JSON file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the plan {path}: {error}") from error
    return Plan.from_json(text)


def _planned_state(plan: Plan, model: nn.Module) -> dict[str, torch.Tensor]:
    """The state (without values) that the plan's architecture has, found on a copy without memory."""
    try:
        copied = skeleton(model, {}, device=torch.device("meta"))
        plan.reshape_(copied)
    except PCNError as error:
        raise FileError(f"the saved plan does not fit this {type(model).__name__}: {error}") from error
    return copied.state_dict(keep_vars=True)


def _read_tensors(path: Path, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    try:
        with safe_open(str(path), framework="pt") as file:
            names = set(file.keys())
            for name in names:
                shape = tuple(file.get_slice(name).get_shape())
                if name not in expected:
                    raise FileError(f"{path} holds {name!r}, which the planned model does not have")
                if shape != tuple(expected[name].shape):
                    planned = tuple(expected[name].shape)
                    raise FileError(f"{name!r} in {path} has shape {shape}, the planned model {planned}")
            _check_complete(path, names, expected)
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot read the weights {path}: {error}") from error


def _check_complete(path: Path, names: set[str], expected: dict[str, torch.Tensor]) -> None:
    """Every tensor must be there under one of its names: files hold a shared tensor once."""
    there = {id(expected[name]) for name in names}
    missing = [name for name, tensor in expected.items() if id(tensor) not in there]
    if missing:
        raise FileError(f"{path} lacks {len(missing)} tensors of the planned model, {missing[0]!r} among them")
