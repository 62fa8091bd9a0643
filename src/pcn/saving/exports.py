"""A model in forms that other programs read; each is compared with the model that it came from."""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialise
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pcn.costs.count import count
from pcn.errors import ConfigError, FileError, PCNError, first_line
from pcn.layers import unwrap
from pcn.rewriting.fold import fold_
from pcn.rewriting.plain import PlainForm, to_plain
from pcn.running.copying import copied
from pcn.running.example import Example
from pcn.running.trees import tensors_in
from pcn.running.untouched import untouched
from pcn.saving.weights import tensors_to_save
from pcn.whole_files import write_whole, written_whole

TOLERANCE = 1e-4  # of the largest number put out: what single precision in another order of sums may differ by
ROUNDINGS = 4.0  # that is, of numbers of half precision, which are rounded at every layer
SINGLE_FILE = 2**30  # bytes; ONNX files end at twice that


class ExportError(PCNError):
    """A model cannot be exported, or what came out computes something else."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from the model, of an output's largest number; None where not checked.

    ``stored`` counts the numbers of the form that was written (:attr:`pcn.costs.count.Cost.total`).
    """

    path: Path
    stored: int
    difference: float | None
    notes: list[str] = field(default_factory=list)


def export_onnx(
    model: nn.Module, example: Example, path: Path, form: PlainForm, *, dynamic_batch: bool = False
) -> Exported:
    """Write an ONNX file; onnxruntime, where it is installed, must compute from it what the model computes."""
    for package in ("onnx", "onnxscript"):
        _imported(package)
    plain = to_plain(model, form).eval()
    stored = count(plain).total
    args, kwargs = _call(example)
    large = sum(tensor.nbytes for tensor in plain.state_dict().values()) > SINGLE_FILE
    with _cannot_write(path), written_whole(path) as place:
        with _exporting("torch.onnx", model):
            torch.onnx.export(
                plain, args, str(place), kwargs=kwargs, dynamo=True, verbose=False, external_data=large,
                dynamic_shapes=_dynamic(example) if dynamic_batch else None,
            )  # fmt: skip
        try:
            runtime = _imported("onnxruntime")
        except ConfigError as error:
            return Exported(path, stored, None, [f"not checked: {error}"])
        try:
            session = runtime.InferenceSession(str(place), providers=["CPUExecutionProvider"])
        except Exception as error:
            if type(error).__name__ != "NotImplemented":
                raise
            return Exported(path, stored, None, [f"not checked: onnxruntime cannot run this on a CPU: {error}"])
        names = [each.name for each in session.get_inputs()]
        values = [tensor.detach().cpu().numpy() for tensor in tree_leaves(example.inputs)]
        given = dict(zip(example.inputs if isinstance(example.inputs, dict) else names, values, strict=True))
        found = [torch.from_numpy(output) for output in session.run(None, {name: given[name] for name in names})]
        return Exported(path, stored, _compared(model, example, found, path))


def export_program(
    model: nn.Module, example: Example, path: Path, form: PlainForm, *, dynamic_batch: bool = False
) -> Exported:
    """Write what ``torch.export.load`` reads; what it reads must compute what the model computes."""
    plain = to_plain(model, form).eval()
    args, kwargs = _call(example)
    shapes = _dynamic(example) if dynamic_batch else None
    written = io.BytesIO()  # first: the program that writes it kills the process when a disk is full
    with _exporting("torch.export", model):
        program = torch.export.export(plain, args, kwargs, dynamic_shapes=shapes, strict=False)
        torch.export.save(program, written)
        again: Any = torch.export.load(written).module()
    with torch.no_grad():
        difference = _compared(model, example, tensors_in(again(*args, **kwargs)), path)
    with _cannot_write(path):
        write_whole(path, written.getbuffer())
    return Exported(path, count(plain).total, difference)


def export_state(model: nn.Module, example: Example | None, path: Path, form: PlainForm) -> Exported:
    """Write the state dict of the plain model as safetensors."""
    return _write_state(model, to_plain(model, form).eval(), example, path, [])


def export_folded(model: nn.Module, example: Example | None, path: Path) -> Exported:
    """Write the state dict of the original architecture as safetensors."""
    folded = copied(unwrap(model)).eval()
    kept = fold_(folded)
    notes = [f"these have a bias that the original lacks: {', '.join(kept)}"] if kept else []
    return _write_state(model, folded, example, path, notes)


def _write_state(model: nn.Module, plain: nn.Module, example: Example | None, path: Path, notes: list[str]) -> Exported:
    difference = None if example is None else _compared(model, example, _outputs(plain, example), path)
    with _cannot_write(path):
        write_whole(path, serialise(tensors_to_save(plain, every_name=True), {"format": "pt"}))
    return Exported(path, count(plain).total, difference, notes)


def _call(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example.inputs, dict):
        return (), example.inputs
    return (example.inputs if isinstance(example.inputs, tuple) else (example.inputs,)), {}


def _dynamic(example: Example) -> Any:
    """Let the first dimension of every input be of any size."""
    dim = {0: torch.export.Dim("batch")}
    args, kwargs = _call(example)
    if any(len(tensor) < 2 for tensor in tree_leaves(example.inputs)):
        raise ConfigError("a batch of any size is exported from an example of at least 2 samples")
    return dict.fromkeys(kwargs, dim) if kwargs else (dim,) * len(args)


def _compared(model: nn.Module, example: Example, found: list[Tensor], path: Path) -> float:
    """How far the exported model is from the model, which must not be far."""
    expected = _outputs(model, example)
    if [tensor.shape for tensor in expected] == [tensor.shape for tensor in found]:
        aparts = [_apart(one, other) for one, other in zip(expected, found, strict=True)]
        difference, tolerance = max(aparts, default=0.0), _tolerance(model, expected)
        if all(apart <= tolerance for apart in aparts):  # which none that is not a number is
            return difference
        wrong = f"is {difference:.2g} of the largest number that it puts out away from the model"
    else:
        wrong = "puts out other tensors than the model"
    raise ExportError(f"the exported model {wrong}, so that {path} is not written")


def _apart(one: Tensor, other: Tensor) -> float:
    """How far two outputs are from one another, of the largest number of the first; whole numbers must be the same."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if not one.numel() or torch.equal(one.cpu(), other.cpu().to(one.dtype)):
        return 0.0
    if not one.is_floating_point():
        return float("inf")
    apart = float((one.double().cpu() - other.double().cpu()).abs().max())
    return apart / (float(one.abs().max()) or 1.0)


def _tolerance(model: nn.Module, outputs: list[Tensor]) -> float:
    """What may be chance: by the coarsest numbers that a model has or puts out."""
    numbers = (tensor for tensor in (*model.parameters(), *model.buffers(), *outputs) if tensor.is_floating_point())
    return max([TOLERANCE, *(ROUNDINGS * torch.finfo(tensor.dtype).eps for tensor in numbers)])


def _outputs(model: nn.Module, example: Example) -> list[Tensor]:
    with untouched(model):
        return tensors_in(example.call(model))


@contextmanager
def _cannot_write(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def _exporting(what: str, model: nn.Module) -> Iterator[None]:
    """Turn whatever an exporter raises into one line, and keep its progress and warnings away."""
    noisy = ("torch.onnx", "onnxscript", "onnx_ir", "torch._subclasses.fake_tensor")
    logs = [logging.getLogger(name) for name in noisy]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ConfigError:
        raise
    except Exception as error:
        cause = error.__cause__ or error  # the exporter's own message lists its steps, not what is wrong
        if isinstance(cause, OSError) and cause.errno is not None:  # the disk, not the model
            raise cause from None
        said = f"{type(cause).__name__}: {first_line(cause)}"
        raise ExportError(f"{what} cannot export {type(model).__name__}: {said}") from error
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"{package} is not installed: pip install {package}") from error
