"""A model's tensors in a safetensors file: each once, all of them, and none that the model does not have."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pcn.errors import FileError, PlanError, file_trouble
from pcn.memory import span

State = dict[str, Tensor]


def identity(tensor: Tensor) -> tuple[object, ...]:
    """What two tensors have in common that are one: tied layers hold one parameter, or two with the same ``data``.

    >>> tensor = torch.ones(2, 2)
    >>> identity(tensor) == identity(tensor.detach()) != identity(tensor.t())
    True
    """
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:  # states may hold anything
        return (id(tensor),)
    return *span(tensor), tensor.dtype, tensor.shape, tensor.stride()


def tensors_to_save(model: nn.Module, *, every_name: bool = False) -> State:
    """The state with every tensor once, under the first of its names, or under ``every_name``, for others to load."""
    tensors: State = {}
    seen: set[tuple[object, ...]] = set()
    storages: set[int] = set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor) or tensor.is_meta or tensor.layout != torch.strided:
            what = "has no values yet" if isinstance(tensor, Tensor) and tensor.is_meta else "is not a dense tensor"
            raise PlanError(
                f"{name!r} in the model's state {what}, so it cannot be saved without pickle: save its state_dict() "
                "yourself, and get_plan(model).to_json(), whose plan gives a new model its shape (reshape_)"
            )
        if identity(tensor) in seen and not every_name:
            continue
        storage = tensor.untyped_storage().data_ptr()
        # safetensors takes no two tensors in one piece of memory.
        tensors[name] = tensor.clone().contiguous() if storage in storages else tensor.contiguous()
        seen.add(identity(tensor))
        storages.add(storage)
    return tensors


def read_tensors(path: Path, expected: State) -> State:
    """Read the tensors that a model expects, under one name each; anything else raises :class:`FileError`."""
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            unknown = sorted(names - expected.keys())
            if unknown:
                raise FileError(f"{path} holds {unknown[0]!r}, which the planned model does not have")
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, ValueError) as error:
        why = file_trouble(error)
        raise FileError(f"cannot read the weights {path}: {why}; give a folder that pcn.save wrote whole") from error
    for name, tensor in tensors.items():
        _check_kind(path, name, tensor, expected[name])
    _check_complete(path, names, expected)
    return tensors


def _check_kind(path: Path, name: str, tensor: Tensor, expected: Tensor) -> None:
    same_kind = (tensor.is_floating_point(), tensor.is_complex()) == (
        expected.is_floating_point(),
        expected.is_complex(),
    )
    if tensor.shape != expected.shape or not same_kind:
        raise FileError(
            f"{name!r} in {path} is {tensor.dtype} of shape {tuple(tensor.shape)}, the planned model has "
            f"{expected.dtype} of shape {tuple(expected.shape)}; these are the weights of another model"
        )


def _check_complete(path: Path, names: set[str], expected: State) -> None:
    """Every tensor must be there under one of its names: files hold a shared tensor once."""
    there = {identity(expected[name]) for name in names}
    missing = [name for name, tensor in expected.items() if identity(tensor) not in there]
    if missing:
        raise FileError(
            f"{path} lacks {len(missing)} tensors of the planned model, {missing[0]!r} among them; "
            "these are the weights of another model"
        )
