"""Statistics in a file: tensors as safetensors, everything else as JSON in its header, and no pickle."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from pcn.errors import FileError, file_trouble
from pcn.running.example import Example
from pcn.running.untouched import checked_mode
from pcn.statistics.choice import check_numbers
from pcn.statistics.forms import SketchOptions
from pcn.statistics.moments import Covariance, Moments
from pcn.statistics.samples import Samples
from pcn.statistics.sketch import Sketch
from pcn.statistics.statistics import LayerShape, Statistics
from pcn.whole_files import write_whole

FORMAT, VERSION = "pcn-statistics", 1
FORMS: dict[str, tuple[str, ...]] = {  # the tensors of every form of moments
    "Covariance": ("pilot", "total", "scatter"),
    "Sketch": ("pilot", "total", "squares", "image", "test"),
    "Samples": ("rows",),
}

State = dict[str, Tensor]


def save(statistics: Statistics, path: str | os.PathLike[str]) -> None:
    """Write statistics into one file, whole or not at all; the batch that the model was traced on goes along."""
    tensors: State = {}
    head = {
        "layers": statistics.layers,
        "left_alone": statistics.left_alone,
        "shapes": {name: dataclasses.asdict(shape) for name, shape in statistics.shapes.items()},
        "options": dataclasses.asdict(statistics.options),
        "moments": _moments_out(statistics.moments, "", tensors),
        "gradients": _moments_out(statistics.gradients, "gradient.", tensors),
        "example": _example_out(statistics.example, tensors),
        "mode": statistics.mode,
        "pool": statistics.pool,
        "remarks": statistics.remarks,
    }
    metadata = {"format": FORMAT, "version": str(VERSION), "statistics": json.dumps(head)}
    own = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    try:
        write_whole(Path(path), serialise(own, metadata))
    except OSError as error:
        raise FileError(f"cannot write the statistics {path}: {error.strerror or error}") from error


def load(path: str | os.PathLike[str]) -> Statistics:
    """Read statistics that :func:`save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            head = file.metadata() or {}
            if head.get("format") != FORMAT or head.get("version") != str(VERSION):
                raise FileError(f"{path} holds no statistics of version {VERSION}: give what Statistics.save wrote")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _read(json.loads(head["statistics"]), tensors)
    except (OSError, SafetensorError) as error:
        why = file_trouble(error)
        raise FileError(f"cannot read the statistics {path}: {why}; give what Statistics.save wrote") from error
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise FileError(f"the statistics in {path} are damaged ({type(error).__name__}: {error})") from error


def _read(head: dict[str, Any], tensors: State) -> Statistics:
    moments = _moments_in(head["moments"], "", tensors)
    gradients = _moments_in(head.get("gradients", ()), "gradient.", tensors)
    shapes = {name: LayerShape(**shape) for name, shape in head["shapes"].items()}
    for name, each in [*((name, moments[key]) for name, key in head["layers"].items()), *gradients.items()]:
        if each.groups * each.width != shapes[name].inputs:
            raise ValueError(f"{name!r} has another width than its moments")
    example, options = _example_in(head["example"], tensors), SketchOptions(**head["options"])
    mode, pool, remarks = checked_mode(head.get("mode", "eval")), head.get("pool"), head.get("remarks", {})
    check_numbers(pool)
    return Statistics(
        head["layers"], head["left_alone"], moments, shapes, example, options, gradients, mode, pool, dict(remarks)
    )


def _moments_out(moments: Mapping[str, Moments], prefix: str, tensors: State) -> list[dict[str, Any]]:
    """Put the tensors of moments beside the others, and describe the rest."""
    heads = []
    for index, (key, each) in enumerate(moments.items()):
        tensors |= {f"{prefix}{index}.{name}": tensor for name, tensor in _tensors(each).items()}
        form = type(each).__name__
        heads.append({"key": key, "form": form, "groups": each.groups, "width": each.width, "count": each.count})
    return heads


def _moments_in(heads: Iterable[dict[str, Any]], prefix: str, tensors: State) -> dict[str, Moments]:
    return {
        head["key"]: _moments(head, {name: tensors[f"{prefix}{index}.{name}"] for name in FORMS[head["form"]]})
        for index, head in enumerate(heads)
    }


def _tensors(moments: Moments) -> State:
    if isinstance(moments, Samples):
        return {"rows": torch.cat([part.to(moments.parts[0].device) for part in moments.parts])}
    return {name: getattr(moments, name) for name in FORMS[type(moments).__name__]}


def _moments(head: dict[str, Any], held: State) -> Moments:
    groups, width, count = head["groups"], head["width"], head["count"]
    if "rows" in held:
        _check(held.values(), [(count, groups * width)])
        return Samples(groups, width, [held["rows"]])
    square = held["scatter"].shape[2:] if "scatter" in held else held["test"].shape[2:]
    made: Any = Covariance(held["pilot"]) if "scatter" in held else Sketch(held["pilot"], held["test"])
    _check(held.values(), [(groups, width), (groups, width, *square)])
    for name, tensor in held.items():
        setattr(made, name, tensor)
    made.count = count
    return made  # type: ignore[no-any-return]


def _check(tensors: Iterable[Tensor], shapes: list[tuple[int, ...]]) -> None:
    for tensor in tensors:
        if tuple(tensor.shape) not in shapes or not tensor.is_floating_point():
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} where {shapes} belong")


def _example_out(example: Example | None, tensors: State) -> dict[str, Any] | None:
    """Put the example's tensors beside the others; one that cannot be written (a function) is left out."""
    inputs = None if example is None or example.forward is not None else example.inputs
    if isinstance(inputs, Tensor):
        tensors["example.0"] = inputs
        return {"kind": "tensor"}
    values = dict(inputs) if isinstance(inputs, dict) else dict(enumerate(inputs or ()))
    if not values or not all(isinstance(value, Tensor) for value in values.values()):
        return None
    tensors |= {f"example.{index}": value for index, value in enumerate(values.values())}
    return {"kind": "dict", "names": list(values)} if isinstance(inputs, dict) else {"kind": "tuple"}


def _example_in(head: dict[str, Any] | None, tensors: State) -> Example | None:
    if head is None:
        return None
    held = [tensors[f"example.{index}"] for index in range(sum(name.startswith("example.") for name in tensors))]
    if head["kind"] == "tensor":
        return Example(held[0])
    return Example(dict(zip(head["names"], held, strict=True)) if head["kind"] == "dict" else tuple(held))
