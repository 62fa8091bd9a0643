"""Saving and loading: a folder with plan.json and model.safetensors, and no pickle anywhere."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from pcn.errors import FileError, PlanError, file_trouble
from pcn.layers import unwrap
from pcn.nn import PCModule, check_own_tensors
from pcn.plans.fit import without_strangers
from pcn.plans.plan import Plan, get_plan
from pcn.rewriting.edit import Edit
from pcn.rewriting.surgery import commit_, reshape_
from pcn.running.refusals import check_whole
from pcn.saving.weights import State, identity, read_tensors, tensors_to_save
from pcn.whole_files import flush, put_in_place, written_whole

PLAN_FILE = "plan.json"
WEIGHTS_FILE = "model.safetensors"
NO_PLAN = "apply one first (pcn.compress_), or save a plain model as usual"
LARGEST_PLAN = 2**27  # bytes; plans of the largest networks take a few million


def save(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a transformed model's plan and weights into a folder; an older one there is replaced only at the end."""
    base = unwrap(model)
    check_whole(base)
    plan = _plan_of_all(base)
    tensors = tensors_to_save(base)
    target = Path(os.path.realpath(folder))
    try:
        refuse_other_files(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=target.parent, prefix=f".{target.name}.", ignore_cleanup_errors=True
        ) as scratch:
            fresh = Path(scratch) / "new"
            fresh.mkdir()
            _write(plan, tensors, fresh)
            flush(fresh / PLAN_FILE, fresh / WEIGHTS_FILE, fresh)
            put_in_place(fresh, target, aside=Path(scratch) / "old")
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise FileError(
            f"cannot save to {target}: {file_trouble(error)}; what was there before is untouched. "
            "Give a folder on a disk with room, beside which you may write"
        ) from error


def save_among(model: nn.Module, folder: Path) -> None:
    """Write the same two files into a folder that holds others too, in place of older ones; the plan is put last."""
    base = unwrap(model)
    plan = get_plan(base)
    if plan is None:
        raise PlanError(f"this model carries no plan: {NO_PLAN}")
    with written_whole(folder / PLAN_FILE) as path:
        _write(without_strangers(plan, base), tensors_to_save(base), path.parent)


def load(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """Give a freshly built original model the saved plan and weights, in place, and return it.

    The model is left as it was when anything about the files does not fit.
    """
    base = unwrap(model)
    earlier = get_plan(base)
    if earlier is not None and earlier.changes_something:
        raise PlanError("this model has been transformed already; build the original one anew and load into that")
    target = Path(folder)
    plan = load_plan(target / PLAN_FILE)
    with ExitStack() as undo:
        try:
            undo.callback(reshape_(plan, base, empty=True))
        except PlanError as error:
            raise FileError(
                f"the plan in {target} does not fit this {type(base).__name__}: {error}; "
                "build the model with the sizes that it had before it was transformed"
            ) from error
        state = base.state_dict(keep_vars=True)
        tensors = read_tensors(target / WEIGHTS_FILE, state)
        undo.pop_all()
    _fill_(base, state, tensors, plan)
    return model


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan from a JSON file."""
    path = Path(path)
    try:
        if path.exists() and (not path.is_file() or path.stat().st_size > LARGEST_PLAN):
            raise FileError(f"{path} is not a file of at most {LARGEST_PLAN:,} bytes, so it is no plan")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot read the plan {path}: {file_trouble(error)}; give the folder that pcn.save wrote"
        ) from error
    try:
        return Plan.from_json(text)
    except FileError as error:
        raise FileError(f"{path}: {error}") from error


def _write(plan: Plan, tensors: State, folder: Path) -> None:
    (folder / PLAN_FILE).write_text(plan.to_json(), encoding="utf-8")
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / WEIGHTS_FILE).chmod((folder / PLAN_FILE).stat().st_mode)  # which safetensors writes for one alone


def _plan_of_all(model: nn.Module) -> Plan:
    """The plan that a model carries, which must explain every principal component layer in it.

    What it left alone may have been changed since, as a head for other classes: that is no part of it then.
    """
    plan = get_plan(model)
    if plan is None:
        parts = [name for name, module in model.named_modules() if get_plan(module) is not None]
        what = f"save its part {parts[0]!r}, which does, and the rest as usual" if parts else NO_PLAN
        raise PlanError(f"this model carries no plan: {what}")
    planned = {layer.name for layer in plan.transformed}
    for name, module in model.named_modules():
        if isinstance(module, PCModule) != (name in planned):
            raise PlanError(
                f"{name!r} is {type(module).__name__}, which is not what the model's plan says, so that loading would "
                "not find it again; save a model as its plan left it"
            )
        if isinstance(module, PCModule):
            check_own_tensors(repr(name), module)
    return without_strangers(plan, model)


def refuse_other_files(folder: str | os.PathLike[str]) -> None:
    """Raise where :func:`save` would have to take the place of what it has not written."""
    target = Path(os.path.realpath(folder))
    if target == Path.cwd():
        raise FileError(f"{target} is the folder that this program is in, and would be replaced: give one inside it")
    if target.exists() and (not target.is_dir() or {p.name for p in target.iterdir()} - {PLAN_FILE, WEIGHTS_FILE}):
        raise FileError(f"{target} exists and is not a folder that pcn.save wrote; give an empty or a new folder")


@torch.no_grad()
def _fill_(model: nn.Module, state: State, tensors: State, plan: Plan) -> None:
    """Copy the values in; tensors without memory are replaced, wherever they are held."""
    read = {identity(state[name]): tensor for name, tensor in tensors.items()}
    new: dict[tuple[object, ...], Tensor] = {}  # one piece of memory for all tensors that share one
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for name, own in state.items():
        same = identity(own)
        if own.is_meta:
            if same not in new:
                new[same] = read[same].to(own.dtype, copy=True)  # a copy, as what was read is still tied to the file
            value = new[same]
            made[id(own)] = (own, nn.Parameter(value, own.requires_grad) if isinstance(own, nn.Parameter) else value)
        elif name in tensors:
            own.copy_(tensors[name])
    if made:
        commit_(model, Edit(cut=made), plan)
