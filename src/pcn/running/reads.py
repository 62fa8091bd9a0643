"""Who computes with a layer's weight or bias, or its size, without calling the layer: seen while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from pcn.errors import PlanError
from pcn.layers import layer_type, transformable_layers
from pcn.memory import Places, Span, span
from pcn.running.copying import copied
from pcn.running.example import Example
from pcn.running.modes import ModeAsked
from pcn.running.seeded import same_numbers
from pcn.running.trees import tensors_in
from pcn.running.untouched import untouched

# What asks a tensor for its shape, dtype or device alone: the tensor's place among the arguments.
LIKE = {Tensor.to: 1, Tensor.type_as: 1}
ABOUT = {Tensor.grad.__get__, Tensor.requires_grad_}  # type: ignore[union-attr]
NUMBERS = {Tensor.numel, Tensor.nelement, torch.numel}
SIZES = {Tensor.shape.__get__, Tensor.size} | NUMBERS  # type: ignore[attr-defined]
Owner = TypeVar("Owner")
Place = tuple[Span, torch.Size]


@dataclass(frozen=True)
class Reads:
    """What running a model in both modes shows.

    ``by`` has the layers with whose own tensors somebody else computes, each with who does: the first to do so.
    ``unseen`` says why the model did not run in train mode; ``alike``, that it did, and that its code did not ask for
    the mode: it is then the same at inference.
    """

    by: dict[str, str] = field(default_factory=dict)
    unseen: str | None = None
    alike: bool = False


def read_directly(model: nn.Module, example: Example) -> Reads:
    """Find the layers with whose own tensors somebody else computes.

    The model runs on the example in eval mode, and a copy of it in train mode, in which models may change themselves;
    whatever they raise is for others to tell. One process of several does not look: where its model waits for the
    others, they would not come.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Reads()
    found, _ = _seen(model, example, training=False, during=nullcontext())
    try:
        double = copied(model)
    except PlanError as error:
        return Reads(found, unseen=str(error))
    asked = ModeAsked(double)
    trained, whole = _seen(double, example, training=True, during=asked)
    return Reads(trained | found, alike=whole and not asked.happened)


def _seen(
    model: nn.Module, example: Example, training: bool, during: AbstractContextManager[Any]
) -> tuple[dict[str, str], bool]:
    """Who reads whose tensors in one mode, and whether the model ran to its end."""
    layers = {name: layer for name, layer, why in transformable_layers(model) if why is None}
    names = {id(module): name for name, module in model.named_modules()}
    owners = Places((tensor, (name, layer)) for name, layer in layers.items() for tensor in layer.parameters())
    weights = {_place(layer.get_parameter("weight")): (name, layer) for name, layer in layers.items()}
    found: dict[str, str] = {}
    sizes: dict[str, str] = {}
    stack: list[nn.Module] = []  # modules whose calls have begun and not ended, the innermost last

    def note(owner: tuple[str, nn.Module], where: dict[str, str]) -> None:
        name, layer = owner
        inside = stack[-1] if stack else model
        if inside is not layer:
            where.setdefault(name, names.get(id(inside)) or type(inside).__name__)

    def asked(owner: tuple[str, nn.Module], size: torch.Size) -> torch.Size:
        note(owner, sizes)
        return size

    def run(*watching: AbstractContextManager[Any]) -> list[Tensor] | None:
        """What the model puts out, or nothing where it fails; every time it draws the same numbers."""
        stack.clear()
        with untouched(model, "train" if training else "eval"), _noting_calls(model, stack), suppress(Exception):
            if training:
                model.train()
            with same_numbers(), ExitStack() as entered:
                for each in watching:
                    entered.enter_context(each)
                return [tensor.detach() for tensor in tensors_in(example.call(model))]
        return None

    output = run(UsesOf(owners, lambda owner: note(owner, found)), SizesOf(weights, asked), during)
    for name, who in sizes.items():
        if output is not None and name not in found:
            other = run(SizesOf({_place(layers[name].get_parameter("weight")): layers[name]}, _twice_as_many))
            if not _alike(output, other):
                found[name] = who
    return found, output is not None


def _twice_as_many(layer: nn.Module, size: torch.Size) -> torch.Size:
    """Another size than a layer's weight has, but for its outputs: it shows who computes with it.

    One behind a basis has another number of inputs, and in patterns of taps no taps of its own.
    """
    kind = layer_type(layer)
    return torch.Size(n if kind is None or dim == kind.out_dim else n * 2 for dim, n in enumerate(size))


def _alike(output: list[Tensor], other: list[Tensor] | None) -> bool:
    try:
        torch.testing.assert_close(other, output, equal_nan=True)
    except Exception:  # they differ, or cannot be compared
        return False
    return True


class UsesOf(TorchFunctionMode, Generic[Owner]):
    """Tells whose tensors an operation computes with, or views of whose, and out of whose values.

    They are known by where they lie. What puts out no tensor, like a shape, only looks; what puts out a view of them
    computes nothing yet.
    """

    def __init__(self, owners: Places[Owner], told: Callable[[Owner], None]) -> None:
        super().__init__()
        self.owners, self.told = owners, told

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if func in ABOUT or name.startswith("new_") or name.endswith("_like"):
            return result
        computed = [arg for place, arg in enumerate(args) if LIKE.get(func) != place]
        used = [(owner, each) for each in _tensors((computed, kwargs)) for owner in self.owners.over(each)]
        pieces, made = ({span(each)[0] for each in some} for some in ((each for _, each in used), _tensors(result)))
        writes = name.endswith("_") and not name.endswith("__")
        if made and (writes or made - pieces):
            for owner, _ in used:
                self.told(owner)
        return result


class SizesOf(TorchFunctionMode, Generic[Owner]):
    """Has ``told`` say what size a weight has when it is asked for it, or its ``data`` is: they lie in one place."""

    def __init__(self, weights: Mapping[Place, Owner], told: Callable[[Owner, torch.Size], torch.Size]) -> None:
        super().__init__()
        self.weights, self.told = weights, told

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in SIZES:
            return result
        tensor, *dim = *args, *(kwargs or {}).values()
        if (place := _place(tensor)) not in self.weights:
            return result
        size = self.told(self.weights[place], tensor.size())
        if func in NUMBERS:
            return prod(size)
        return size if isinstance(result, torch.Size) else size[dim[0]]


def _place(tensor: Tensor) -> Place:
    """Where a tensor lies, and its size: a view may lie there too. Nested ones, which no weight is, have none."""
    return span(tensor), torch.Size() if tensor.is_nested else tensor.size()


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


@contextmanager
def _noting_calls(model: nn.Module, stack: list[nn.Module]) -> Iterator[None]:
    """Have the modules of a model stand on the stack while they are called, their own hooks included."""

    def enter(module: nn.Module, args: Any) -> None:
        stack.append(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        while stack and stack.pop() is not module:
            pass

    with ExitStack() as hooks:
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                hooks.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
                hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield
