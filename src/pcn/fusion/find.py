"""Where a model has batch norms that run in one pass with what follows them: read off its captured graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcn.fusion.layers import LAYERS, Form, multiplies_out
from pcn.fusion.norms import NORMS
from pcn.graph.trace import caller, capture, shapes
from pcn.graph.walk import as_op
from pcn.nn import PCModule
from pcn.nn.build import HOOKS

RELU = ("aten.relu", "aten.relu_")
ADD = ("aten.add", "aten.add_")


@dataclass(frozen=True)
class Found:
    """One batch norm and what follows it, by name; see :class:`pcn.fusion.chain.Chain`."""

    norm: str
    added: bool = False
    relu: bool = False
    emit: bool = True
    readers: tuple[str, ...] = ()
    before: str | None = None


@dataclass
class Search:
    """What was found in a model, and why the other batch norms and layers stay as they are."""

    chains: list[Found] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)


def find_chains(model: nn.Module, example: Any, forms: Mapping[str, Form]) -> Search:
    """Follow every batch norm of a model; only layers whose form is "fused" take projections."""
    return _Finder(model, capture(model, example).graph, forms).run()


class _Finder:
    def __init__(self, model: nn.Module, graph: fx.Graph, forms: Mapping[str, Form]) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.first = {id(module): name for name, module in model.named_modules()}
        self.graph, self.forms = graph, forms
        self.search = Search()
        self.calls = self._calls()

    def run(self) -> Search:
        taken: set[fx.Node] = set()  # a sum belongs to one batch norm
        for node in self.graph.nodes:
            name = self._owner(node, _BatchNorm) if as_op(node) == "aten.batch_norm" else None
            if name is not None:
                reason = self._refusal(name)
                if reason is None:
                    self.search.chains.append(self._chain(node, name, taken))
                else:
                    self.search.left_alone[name] = reason
        return self.search

    def _chain(self, node: fx.Node, name: str, taken: set[fx.Node]) -> Found:
        before = self._before(node)
        follower = _only_user(node)
        added = follower is not None and follower not in taken and _adds(follower)
        relu = _only_user(follower) if added and follower is not None else follower
        if relu is None or as_op(relu) not in RELU:
            return Found(name, before=before)
        if added and follower is not None:
            taken.add(follower)
        readers, emit = self._readers(relu)
        return Found(name, added, True, emit, readers, before)

    def _readers(self, relu: fx.Node) -> tuple[tuple[str, ...], bool]:
        """The layers that can share one projection of this activation, and whether anybody else needs it."""
        readers: list[str] = []
        emit = False
        for user in relu.users:
            name = self._owner(user, PCModule)
            if name is None or not self._takes_projection(name, relu) or not self._same_basis(readers, name):
                emit = True
            elif name not in readers:
                readers.append(name)
        return tuple(readers), emit

    def _takes_projection(self, name: str, relu: fx.Node) -> bool:
        layer = self.modules[name]
        assert isinstance(layer, PCModule)
        reads_it_alone = self.calls[name] == {relu}
        kind = type(layer) in LAYERS and multiplies_out(layer) and not hooked(layer)
        channels_match = layer.basis.shape[0] == shapes(relu)[0][1] and (
            layer.weight.dim() == len(shapes(relu)[0])  # a linear layer on images reads another dimension
        )
        return self.forms.get(name) == "fused" and reads_it_alone and kind and channels_match

    def _same_basis(self, readers: list[str], name: str) -> bool:
        if not readers:
            return True
        bases = [self.modules[each].basis for each in (readers[0], name)]
        means = [self.modules[each].mean for each in (readers[0], name)]
        return all(a.shape == b.shape and torch.equal(a, b) for a, b in (bases, means))

    def _before(self, node: fx.Node) -> str | None:
        """The layer whose output this batch norm alone reads."""
        source = node.args[0]
        assert isinstance(source, fx.Node)
        name = self._owner(source, PCModule)
        if name is None or _only_user(source) is not node or len(self.calls[name]) != 1:
            return None
        layer = self.modules[name]
        assert isinstance(layer, PCModule)
        whole = layer.weight.dim() == len(shapes(node)[0]) and layer.bias.requires_grad
        return name if whole and type(layer) in LAYERS and multiplies_out(layer) and not hooked(layer) else None

    def _calls(self) -> dict[str, set[fx.Node]]:
        """For each principal component layer the activations that it is called on."""
        found: dict[str, set[fx.Node]] = {}
        activations = _activations(self.graph)
        for node in self.graph.nodes:
            name = self._owner(node, PCModule)
            if name is not None:
                given = [source for source in node.all_input_nodes if source in activations]
                found.setdefault(name, set()).update(each for each in given if self._owner(each, PCModule) != name)
        return found

    def _owner(self, node: fx.Node, kind: type[nn.Module]) -> str | None:
        """The first name of the module that makes a call, if it is of this kind."""
        who = caller(node) if node.op == "call_function" else None
        module = self.modules.get(who) if who is not None else None
        return self.first[id(module)] if isinstance(module, kind) else None

    def _refusal(self, name: str) -> str | None:
        norm = self.modules[name]
        assert isinstance(norm, _BatchNorm)
        times = Counter(self._owner(node, _BatchNorm) for node in self.graph.nodes if as_op(node) == "aten.batch_norm")
        if type(norm) not in NORMS:
            return f"{type(norm).__name__} is not nn.BatchNorm1d, nn.BatchNorm2d or nn.BatchNorm3d itself"
        if times[name] > 1:
            return f"it is called {times[name]} times"
        if not norm.affine:
            return "it has no weight and bias"
        if hooked(norm):
            return "it has hooks, which want tensors"
        if "forward" in norm.__dict__:
            return "its forward function was replaced"
        return None


def hooked(module: nn.Module) -> bool:
    return any(getattr(module, name) for name in HOOKS if name != "_is_full_backward_hook")


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _adds(node: fx.Node) -> bool:
    """Whether a call adds two tensors of one shape and dtype."""
    if as_op(node) not in ADD or node.kwargs or len(node.args) != 2:
        return False
    values = [value.meta.get("val") if isinstance(value, fx.Node) else None for value in node.args]
    described = [(value.shape, value.dtype) for value in values if isinstance(value, torch.Tensor)]
    return len(described) == 2 and described[0] == described[1]


def _activations(graph: fx.Graph) -> set[fx.Node]:
    """The values that depend on the model's inputs; what is made of parameters and buffers alone does not."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        given = node.op == "placeholder" and not node.name.startswith(("p_", "b_", "c_"))
        if given or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found
