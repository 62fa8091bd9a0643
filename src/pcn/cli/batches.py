"""What goes through the model: samples of a data set, tensors from a file, or noise that was asked for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pcn.cli.command import WrongUsageError
from pcn.cli.screen import Screen
from pcn.cli.settings_flags import DATA, Flags, add_some_settings
from pcn.cli.subject import Subject
from pcn.errors import FileError
from pcn.running.example import Example
from pcn.saving.weight_files import read_torch
from pcn.training.sources import load_data

Inputs = Tensor | dict[str, Tensor]
BATCH = 128  # samples of a file that go through the model at a time
TENSORS = "one tensor, or a dict of tensors by name"
NUMPY = (b"\x93NUMPY", b"PK")  # how its files begin: of one array, and of several
SUFFIXES = (".pt", ".npy", ".npz", ".safetensors")


def add_batches(parser: argparse.ArgumentParser, title: str = "what to look at") -> Flags:
    """Add the flags that say where batches come from; the exclusive group, for one more, comes back."""
    group = parser.add_argument_group(title, "nothing is guessed: say where it comes from, unless a --run has its own")
    one = group.add_mutually_exclusive_group()
    add_some_settings(one, DATA[:1], must_say=True)
    one.add_argument(
        "--inputs", type=Path, metavar="FILE", help=f"tensors ({', '.join(SUFFIXES)}); names are the model's keywords"
    )
    one.add_argument(
        "--random-inputs", nargs="+", metavar="SHAPE", help="noise: 8,3,32,32 or input_ids=8,64:30522 for whole numbers"
    )
    add_some_settings(group, DATA[1:])
    return one


def read_batches(arguments: argparse.Namespace, subject: Subject, purpose: str = "what to look at") -> list[Any]:
    """The batches that were asked for, on the model's device."""
    if arguments.inputs is not None:
        inputs = read_inputs(arguments.inputs)
    elif arguments.random_inputs is not None:
        inputs = random_inputs(arguments.random_inputs, subject.settings.seed)
    elif subject.has_data:
        data = load_data(subject.settings, subject.device, torch.float32)
        return list(data.calibration(subject.settings.calibration_samples))
    else:
        raise WrongUsageError(f"say {purpose}: --data NAME, --inputs FILE, or --random-inputs SHAPE for noise")
    return [_suited(batch, subject) for batch in _split(inputs)]


def warn_of_noise(arguments: argparse.Namespace, screen: Screen) -> None:
    if arguments.random_inputs is not None:
        screen.warn("noise has no small subspaces: what is measured on --random-inputs says little about real data")


def read_inputs(path: Path) -> Inputs:
    """Read a tensor, or tensors by name."""
    if not path.is_file():
        raise FileError(f"there is no file {path}: give one of {', '.join(SUFFIXES)}")
    readers: dict[str, Callable[[Path], Any]] = {
        ".pt": _from_torch,
        ".npy": _from_numpy,
        ".npz": _from_numpy,
        ".safetensors": load_file,
    }
    if path.suffix not in readers:
        raise FileError(f"{path}: tensors are read from {', '.join(SUFFIXES)} files")
    try:
        found = readers[path.suffix](path)
    except FileError:
        raise
    except Exception as error:  # bytes that are no tensors may lead a reader anywhere
        reason = " ".join(str(error).split())[:200]
        raise FileError(
            f"cannot read the tensors in {path}: {reason}; save tensors only, and give a whole file"
        ) from error
    by_name = isinstance(found, Mapping) and found and all(isinstance(value, Tensor) for value in found.values())
    if not by_name and not isinstance(found, Tensor):
        raise FileError(f"{path} holds a {type(found).__name__}: save {TENSORS}")
    inputs: Inputs = dict(found) if by_name else found
    if Example.of(inputs).is_empty:
        raise FileError(f"{path} holds no samples: the first size of what is in it is 0; save some samples")
    return inputs


def _from_torch(path: Path) -> Any:
    return read_torch(path, TENSORS)


def _from_numpy(path: Path) -> Any:
    import numpy

    with path.open("rb") as file:  # NumPy leaves one that it opens itself open where it fails
        if not file.read(len(NUMPY[0])).startswith(NUMPY):  # which it takes for pickles
            saved = "numpy.savez" if path.suffix == ".npz" else "numpy.save"
            raise FileError(f"{path} is not a file that {saved} wrote: write one with it, of numbers alone")
        file.seek(0)
        try:
            found = numpy.load(file, allow_pickle=False)
            if isinstance(found, numpy.ndarray):
                return torch.from_numpy(found)
            return {name: torch.from_numpy(found[name]) for name in found.files}
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise FileError(f"{path} holds Python objects: save arrays of numbers alone") from error


def random_inputs(given: list[str], seed: int) -> Inputs:
    """Make noise of the shapes that were given.

    >>> {name: tensor.shape for name, tensor in random_inputs(["input_ids=2,5:100"], seed=0).items()}
    {'input_ids': torch.Size([2, 5])}
    """
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for text in given:
        match = re.fullmatch(r"(?:(\w+)=)?([1-9]\d*(?:,[1-9]\d*)*)(?::([1-9]\d*))?", text)
        if match is None:
            raise WrongUsageError(f"--random-inputs {text!r}: give a shape, as in 8,3,32,32 or input_ids=8,64:30522")
        name, sizes, below = match[1], [int(size) for size in match[2].split(",")], match[3]
        tensor = torch.randn(sizes, generator=generator)
        made[name] = tensor if below is None else torch.randint(int(below), sizes, generator=generator)
    if list(made) == [None] and len(given) == 1:
        return made[None]
    if None in made or len(made) != len(given):
        raise WrongUsageError("--random-inputs: give each of several tensors a name of its own, as in mask=8,64:2")
    return made


def _split(inputs: Inputs) -> Iterator[Inputs]:
    """Cut along the first dimension, where all tensors have the same one."""
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs.values())
    sizes = {len(tensor) if tensor.dim() else 0 for tensor in tensors}
    if len(sizes) > 1 or 0 in sizes:
        yield inputs
        return
    for start in range(0, sizes.pop(), BATCH):
        yield tree_map_only(Tensor, lambda tensor, start=start: tensor[start : start + BATCH], inputs)


def _suited(inputs: Inputs, subject: Subject) -> Inputs:
    """Bring numbers to the model's device, and those with a fraction to its precision."""
    dtype = _dtype_of(subject.model)

    def suited(tensor: Tensor) -> Tensor:
        return tensor.to(subject.device, dtype if tensor.is_floating_point() else tensor.dtype)

    moved: Inputs = tree_map_only(Tensor, suited, inputs)
    return moved


def _dtype_of(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
