"""Which channels of a model belong together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcn.errors import ConfigError, TraceError, first_line
from pcn.graph.atoms import Atoms
from pcn.graph.trace import capture
from pcn.graph.walk import Passed, Walk
from pcn.layers import unwrap
from pcn.memory import Places, tensors_by_name
from pcn.running.example import Example, Forward
from pcn.running.reads import Reads, read_directly


@dataclass(frozen=True)
class Flow:
    """What a model does in one mode: call by call, in order, which channels come out."""

    calls: tuple[Passed, ...]
    constants: tuple[Tensor, ...]  # tensors that the model's code makes out of numbers
    training: bool = False

    @classmethod
    def of(cls, walk: Walk, classes: Tensor, training: bool) -> Flow:
        calls = (replace(call, outputs=tuple(value.mapped(classes) for value in call.outputs)) for call in walk.flow)
        return cls(tuple(calls), tuple(walk.constants), training)


@dataclass(frozen=True)
class ChannelGraph:
    """The coupling of a model's channels, at inference and in training.

    ``tensors`` gives, for every parameter and buffer, the channel class of each index along each dimension: what
    shares a class is kept or dropped together. ``pinned`` says why a class must stay; those that are ``visible`` are in
    what the model puts out at inference.
    """

    tensors: dict[str, tuple[Tensor, ...]]
    pinned: dict[int, str]
    class_count: int
    flows: tuple[Flow, ...] = ()  # at inference and, where the model's code may do something else there, in training
    untraced: str | None = None  # why what it does in training could not be followed
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)  # layer -> the activations that it is called on
    # Layer -> positions of its input and output in all samples; calls on what depends on no sample are not counted.
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    norm_after: dict[str, str] = field(default_factory=dict)  # layer -> the batch norm that alone reads its output
    directly_read: Reads = field(default_factory=Reads)  # who uses a layer's weight without calling it
    visible: frozenset[int] = frozenset()
    idle_norms: frozenset[int] = frozenset()  # the widths of batch norms that no call has reached


def check_graph(graph: object) -> None:
    """Raise for what is no graph."""
    if not isinstance(graph, ChannelGraph):
        raise ConfigError(f"graph is of type {type(graph).__name__}: give what pcn.trace(model, example) returns")


def trace(model: nn.Module, example: Any, *, forward: Forward | None = None) -> ChannelGraph:
    """Capture a model's graph and find which of its channels belong together; the model stays as it is.

    ``example`` is a batch as :func:`pcn.analyze` takes it, with its ``forward`` where one is needed, or an Example.
    """
    model = unwrap(model)
    example = Example.for_model(model, example, forward)
    atoms = Atoms()
    held: dict[str, tuple[Tensor, ...]] = {}
    stays = _staying(model)

    def labels_of(name: str, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        if name not in held:
            held[name] = tuple(atoms.fresh(size) for size in shape)
            for label in held[name]:
                if name in stays:
                    atoms.pin(label, stays[name])
        return held[name]

    walk = Walk(model, atoms, labels_of)
    walk.run(capture(model, example))
    seen = read_directly(model, example)
    walks, untraced = {False: walk}, None
    if not seen.alike:
        atoms.when = " in train mode"
        try:
            program = capture(model, example, training=True)
            walks[True] = Walk(model, atoms, labels_of)
            walks[True].run(program)
        except TraceError as error:
            untraced = first_line(error.__cause__)
    classes = atoms.classes()
    read = {name: who for each in reversed(walks.values()) for name, who in each.directly_read.items()}
    return ChannelGraph(
        tensors={name: tuple(classes[label] for label in labels) for name, labels in held.items()},
        pinned=atoms.pinned(classes),
        class_count=atoms.count,
        flows=tuple(Flow.of(each, classes, training) for training, each in walks.items()),
        untraced=untraced,
        reads=walk.reads,
        positions={layer: found for layer, found in walk.positions.items() if layer not in walk.uncounted},
        norm_after=walk.norms_of_one(),
        directly_read=replace(seen, by=seen.by | read),
        visible=frozenset(int(cls) for label in walk.visible for cls in classes[label].unique()),
        idle_norms=_idle_norms(model, {name for each in walks.values() for name in each.norm_calls}),
    )


def _idle_norms(model: nn.Module, called: set[str]) -> frozenset[int]:
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    return frozenset(norm.num_features for name, norm in norms.items() if name not in called)


def _staying(model: nn.Module) -> dict[str, str]:
    """Say which tensors cannot lose entries, and why: what knows their size, no graph shows."""
    tensors = tensors_by_name(model)
    places = Places((tensor, name) for name, tensor in tensors.items())
    reasons: dict[str, str] = {}
    for name, tensor in tensors.items():
        holders = places.over(tensor)  # none of an empty one
        other = next((each for each in holders if tensors[each] is not tensors[holders[0]]), None)
        if other is not None:
            reasons[name] = f"{holders[0]!r} and {other!r} are two tensors in one piece of memory"
        if tensor._backward_hooks:
            reasons[name] = f"a hook on the gradient of {name!r} knows its size"
    return reasons
