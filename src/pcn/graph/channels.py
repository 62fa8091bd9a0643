"""Which channels of a model belong together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from pcn.errors import ConfigError
from pcn.graph.atoms import Atoms
from pcn.graph.trace import capture
from pcn.graph.walk import Passed, Walk
from pcn.layers import unwrap
from pcn.running.example import Example
from pcn.running.reads import read_directly


@dataclass(frozen=True)
class ChannelGraph:
    """The coupling of a model's channels.

    ``tensors`` gives, for every parameter and buffer, the channel class of each index along each dimension: what
    shares a class is kept or dropped together. ``pinned`` says why a class must stay.
    """

    tensors: dict[str, tuple[Tensor, ...]]
    pinned: dict[int, str]
    class_count: int
    flow: tuple[Passed, ...] = ()  # call by call, in order, which channels come out
    constants: tuple[Tensor, ...] = ()  # tensors that the model's code makes out of numbers
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)  # layer -> the activations that it is called on
    # Layer -> positions of its input and output in all samples; calls on what depends on no sample are not counted.
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    norm_after: dict[str, str] = field(default_factory=dict)  # layer -> the batch norm that alone reads its output
    directly_read: dict[str, str] = field(default_factory=dict)  # layer -> who uses its weight without calling it


def check_graph(graph: object) -> None:
    """Raise for what is no graph."""
    if not isinstance(graph, ChannelGraph):
        raise ConfigError(f"graph is of type {type(graph).__name__}: give what pcn.trace(model, example) returns")


def trace(model: nn.Module, example: Any) -> ChannelGraph:
    """Capture a model's graph and find which of its channels belong together; the model stays as it is.

    ``example`` is a batch as :func:`pcn.analyze` takes it, or an Example.
    """
    model = unwrap(model)
    example = Example.for_model(model, example)
    atoms = Atoms()

    def fresh(name: str, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        return tuple(atoms.fresh(size) for size in shape)

    walk = Walk(model, atoms, fresh)
    walk.run(capture(model, example))
    classes = atoms.classes()
    return ChannelGraph(
        {name: tuple(classes[label] for label in labels) for name, labels in walk.tensors.items()},
        atoms.pinned(classes),
        atoms.count,
        tuple(replace(passed, outputs=tuple(v.mapped(classes) for v in passed.outputs)) for passed in walk.flow),
        tuple(walk.constants),
        walk.reads,
        {layer: found for layer, found in walk.positions.items() if layer not in walk.uncounted},
        walk.norms_of_one(),
        read_directly(model, example) | walk.directly_read,
    )
