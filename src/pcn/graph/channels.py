"""Which channels of a model belong together: the graph's calls, carried through the table of rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from pcn.errors import PlanError
from pcn.example import Example
from pcn.graph import pointwise, reshaping, weighted  # noqa: F401  (imported for the rules that they register)
from pcn.graph.atoms import Atoms, Carried
from pcn.graph.rules import apply_rule
from pcn.graph.trace import as_call, caller, capture, shapes, sources
from pcn.graph.weighted import INPUT_INDEX, WEIGHT_ARGUMENT
from pcn.layers import unwrap

Labels = Mapping[str, tuple[Tensor, ...]]


@dataclass(frozen=True)
class ChannelGraph:
    """The coupling of a model's channels.

    ``tensors`` gives, for every parameter and buffer, the channel class of each index along each dimension: what
    shares a class is kept or dropped together. ``pinned`` says why a class must stay.
    """

    tensors: dict[str, tuple[Tensor, ...]]
    pinned: dict[int, str]
    class_count: int
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)  # layer -> the activations that it is called on
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)  # layer -> input and output positions
    norm_after: dict[str, str] = field(default_factory=dict)  # layer -> the batch norm that alone reads its output
    directly_read: dict[str, str] = field(default_factory=dict)  # layer -> who uses its weight without calling it

    def readers(self) -> dict[str, tuple[str, ...]]:
        """Group the layers that read the same activations: activation names -> layers."""
        groups: dict[str, list[str]] = {}
        for layer, activations in self.reads.items():
            groups.setdefault(" ".join(activations), []).append(layer)
        return {key: tuple(layers) for key, layers in groups.items()}


def trace(model: nn.Module, example: Example) -> ChannelGraph:
    """Capture a model's graph and find which of its channels belong together; the model stays as it is."""
    model = unwrap(model)
    atoms = Atoms()

    def fresh(name: str, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        return tuple(atoms.fresh(size) for size in shape)

    walk = _Walk(model, atoms, fresh)
    walk.run(capture(model, example))
    classes = atoms.classes()
    tensors = {name: tuple(classes[label] for label in labels) for name, labels in walk.tensors.items()}
    return ChannelGraph(
        tensors, atoms.pinned(classes), atoms.count, walk.reads, walk.positions, walk.norm_after, walk.directly_read
    )


def check_couplings(model: nn.Module, example: Example, expected: Labels, class_count: int) -> None:
    """Raise when a model's own graph couples channels that ``expected`` keeps apart.

    A model whose channels were dropped is traced again with the classes that its tensors should carry: sizes written
    into its code show up as a failing trace or as channels that meet the wrong ones.
    """
    atoms = Atoms(class_count)
    _Walk(model, atoms, lambda name, shape: expected[name]).run(capture(model, example))
    classes = atoms.classes()[:class_count]
    if not torch.equal(classes, torch.arange(class_count)):
        raise PlanError("after dropping, channels meet that did not belong together: a size is written into the model")


class _Walk:
    """One pass over the calls of a captured graph."""

    def __init__(
        self, model: nn.Module, atoms: Atoms, labels_of: Callable[[str, tuple[int, ...]], tuple[Tensor, ...]]
    ) -> None:
        self.model = model
        self.atoms = atoms
        self.labels_of = labels_of
        self.names = {id(module): name for name, module in model.named_modules()}
        self.tensors: dict[str, tuple[Tensor, ...]] = {}
        self.reads: dict[str, tuple[str, ...]] = {}
        self.positions: dict[str, tuple[int, int]] = {}
        self.norm_after: dict[str, str] = {}
        self.directly_read: dict[str, str] = {}

    def run(self, program: torch.export.ExportedProgram) -> None:
        named = sources(program)
        carried: dict[fx.Node, Any] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                carried[node] = self._placeholder(node, named.get(node.name))
            elif node.op == "call_function":
                carried[node] = self._call(node, carried)
            elif node.op == "output":
                for value in node.all_input_nodes:
                    self._pin_output(carried[value])
            else:
                carried[node] = None

    def _placeholder(self, node: fx.Node, source: str | None) -> Any:
        shape = shapes(node)[0]
        if source is None:
            return Carried.fixed(shape)
        if source not in self.tensors:
            self.tensors[source] = self.labels_of(source, shape)
        return Carried(shape, self.tensors[source], source)

    def _call(self, node: fx.Node, carried: dict[fx.Node, Any]) -> Any:
        call = as_call(node, carried)
        if call.op == "getitem":
            container, index = node.args
            assert isinstance(container, fx.Node)
            value = carried[container]
            return value[index] if isinstance(value, list) else value
        if call.op in WEIGHT_ARGUMENT:
            self._reading(node, call[WEIGHT_ARGUMENT[call.op]])
        return apply_rule(self.atoms, call)

    def _reading(self, node: fx.Node, weight: Carried) -> None:
        """Note which layer a weighted call belongs to, or that somebody uses its weight without calling it."""
        who = caller(node)
        owner = None if weight.source is None else weight.source.rpartition(".")[0]
        if owner is None or who is None:
            self.atoms.pin_all(weight, "its weight is computed or belongs to no layer")
            return
        layer = self.names[id(self.model.get_submodule(owner))]
        if self.model.get_submodule(owner) is not self.model.get_submodule(who):
            self.directly_read[layer] = who
            self.atoms.pin_all(weight, f"{who!r} uses its weight without calling it")
            return
        source = node.args[INPUT_INDEX[as_op(node)]]
        assert isinstance(source, fx.Node)
        self.reads[layer] = (*self.reads.get(layer, ()), str(source))
        spatial = max(weight.ndim - 2, 0)
        inputs, outputs = self.positions.get(layer, (0, 0))
        self.positions[layer] = (inputs + _positions(source, spatial), outputs + _positions(node, spatial))
        self._norm(node, layer)

    def _norm(self, node: fx.Node, layer: str) -> None:
        users = list(node.users)
        if len(users) == 1 and as_op(users[0]) == "aten.batch_norm" and len(self.reads[layer]) == 1:
            who = caller(users[0])
            if who and isinstance(self.model.get_submodule(who), nn.modules.batchnorm._BatchNorm):
                self.norm_after[layer] = who
        elif layer in self.norm_after:
            del self.norm_after[layer]

    def _pin_output(self, value: Any) -> None:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Carried):
                self.atoms.pin_all(item, "its channels are visible in the model's output")


def as_op(node: fx.Node) -> str:
    return str(getattr(node.target, "overloadpacket", node.target)).replace("::", ".")


def _positions(node: fx.Node, spatial: int) -> int:
    """The number of positions at which a tensor holds channels."""
    shape = shapes(node)[0]
    channels = len(shape) - spatial - 1
    return math.prod(shape[:channels]) * math.prod(shape[channels + 1 :])
