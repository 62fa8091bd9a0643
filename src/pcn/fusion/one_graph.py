"""What one captured graph of a model shows about its batch norms: the calls around them that may become one pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcn.fusion.calls import activations, adds, is_average, module_stack, only_user
from pcn.fusion.found import Found, Search
from pcn.fusion.hooks import hooked
from pcn.fusion.layers import LAYERS, FusedConv, forms_of
from pcn.fusion.norms import NORMS
from pcn.fusion.stems import is_stem
from pcn.graph.trace import caller, op_name, shapes
from pcn.nn import PCModule
from pcn.plans.plan import Form

RELU = ("aten.relu", "aten.relu_")
SOURCES = (PCModule, nn.Conv2d)  # what may hand its output to a batch norm


@dataclass
class Calls:
    """The calls that one chain is made of."""

    norm: fx.Node
    added: fx.Node | None = None
    relu: fx.Node | None = None

    @property
    def nodes(self) -> list[fx.Node]:
        return [node for node in (self.norm, self.added, self.relu) if node is not None]


class GraphSearch:
    """What one graph shows."""

    def __init__(self, model: nn.Module, graph: fx.Graph, forms: Mapping[str, Form]) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.first = {id(module): name for name, module in model.named_modules()}
        self.graph, self.forms = graph, forms
        self.order = {node: number for number, node in enumerate(graph.nodes)}
        self.activations = activations(graph)
        self.search = Search()
        self.calls = self._calls()
        self.outputs = self._outputs()
        norms = (node for node in graph.nodes if op_name(node) == "aten.batch_norm")
        self.norm_calls = Counter(self._owner(node, _BatchNorm) for node in norms)
        self.members: set[fx.Node] = set()  # of any chain; a sum belongs to one batch norm

    def run(self) -> Search:
        found: dict[str, Calls] = {}
        for node in self.graph.nodes:
            name = self._owner(node, _BatchNorm) if op_name(node) == "aten.batch_norm" else None
            if name is not None:
                reason = self._refusal(name)
                if reason is None:
                    found[name] = self._follow(node)
                    self.members.update(found[name].nodes)
                else:
                    self.search.left_alone[name] = reason
        self.search.chains = [self._chain(name, calls) for name, calls in found.items()]
        return self.search

    def _follow(self, norm: fx.Node) -> Calls:
        """Find the ReLU, or the sum and the ReLU, that alone read a batch norm."""
        follower = only_user(norm)
        added = follower if follower is not None and follower not in self.members and adds(follower, norm) else None
        relu = follower if added is None else only_user(added)
        if relu is None or op_name(relu) not in RELU:
            return Calls(norm)
        return Calls(norm, added, relu)

    def _chain(self, name: str, calls: Calls) -> Found:
        found = self._behind(name, calls)
        source = self._source(calls.norm)
        if source is None:
            return found
        return replace(found, source=source, before=self._passed(calls.norm.all_input_nodes[0], calls.norm))

    def _behind(self, name: str, calls: Calls) -> Found:
        if calls.relu is None or self._written(calls.norm, calls.relu):
            return Found(name)
        added = calls.added is not None
        users = list(calls.relu.users)
        if users and all(map(self._foreseen, users)) and not self._written(calls.norm, *users):
            readers, others = self._readers(calls.relu)
            if readers:
                beside = any(self._owner(user, PCModule) is not None for user in others)
                passed = self._passed(*calls.nodes, *users)
                return Found(name, added, True, bool(others), readers, beside=beside, passed=passed)
        pooled = all(is_average(user) for user in users)
        return Found(name, added, True, pooled=pooled, passed=self._passed(*calls.nodes))

    def _source(self, norm: fx.Node) -> str | None:
        """The convolution that is called once and whose output nobody but this batch norm reads."""
        output = norm.all_input_nodes[0]
        name = self._owner(output, SOURCES)
        if name is None or not self._hands_over(name):
            return None
        return name if self.outputs[name] == [output] and only_user(output) is norm else None

    def _hands_over(self, name: str) -> bool:
        layer = self.modules[name]
        if name in self.forms:
            return _own_forward(layer) and issubclass(LAYERS[type(layer)], FusedConv)
        return _own_forward(layer) and is_stem(layer) and not hooked(layer)

    def _foreseen(self, user: fx.Node) -> bool:
        """Whether a call can take a value that is not computed: a layer of ours, or the sum of another chain."""
        layer = self._owner(user, PCModule)
        return user in self.members if layer is None else layer in self.forms and _own_forward(self.modules[layer])

    def _readers(self, relu: fx.Node) -> tuple[tuple[str, ...], list[fx.Node]]:
        """The layers that can share one projection of this activation, and the calls that need all of it."""
        readers: list[str] = []
        others: list[fx.Node] = []
        for user in relu.users:
            name = self._owner(user, PCModule)
            if name is None or not self._takes_projection(name, relu) or not self._same_basis(readers, name):
                others.append(user)
            elif name not in readers:
                readers.append(name)
        return tuple(readers), others

    def _takes_projection(self, name: str, relu: fx.Node) -> bool:
        layer = self.modules[name]
        assert isinstance(layer, PCModule)
        reads_it_alone = self.calls[name] == {relu}
        kind = type(layer) in LAYERS and "fused" in forms_of(layer) and not hooked(layer)
        channels_match = (
            layer.basis is not None
            and layer.basis.shape[0] == shapes(relu)[0][1]
            and (
                layer.full_kernel.dim() == len(shapes(relu)[0])  # a linear layer on images reads another dimension
            )
        )
        return self.forms.get(name) == "fused" and reads_it_alone and kind and channels_match

    def _same_basis(self, readers: list[str], name: str) -> bool:
        if not readers:
            return True
        bases = [self.modules[each].basis for each in (readers[0], name)]
        means = [self.modules[each].mean for each in (readers[0], name)]
        return all(a.shape == b.shape and torch.equal(a, b) for a, b in (bases, means))

    def _written(self, norm: fx.Node, *users: fx.Node) -> bool:
        """Whether something is written in place while a value waits: it might be what the value is made of."""
        last = max(self.order[user] for user in users)
        return any(
            self.order[norm] < number < last and node not in self.members and op_name(node).endswith("_")
            for node, number in self.order.items()
            if node.op == "call_function" and any(source in self.activations for source in node.all_input_nodes)
        )

    def _passed(self, *nodes: fx.Node) -> tuple[str, ...]:
        """The modules into or out of which a value goes on its way, whose hooks would see it."""
        stacks = [module_stack(node) for node in nodes]
        common = [entries[0] for entries in zip(*stacks, strict=False) if len(set(entries)) == 1]
        names = [path for stack in stacks for _, path in stack[len(common) :]]
        inside = common[-1][1] if common else ""
        calling = {path for node in self.graph.nodes for _, path in module_stack(node)}
        within = f"{inside}." if inside else ""
        silent = [name for name in self.modules if name.startswith(within) and name not in calling]
        return tuple(dict.fromkeys(name for name in (*names, *silent) if name in self.modules))

    def _calls(self) -> dict[str, set[fx.Node]]:
        """For each principal component layer the activations that it is called on."""
        found: dict[str, set[fx.Node]] = {}
        for node in self.graph.nodes:
            name = self._owner(node, PCModule)
            if name is not None:
                given = [source for source in node.all_input_nodes if source in self.activations]
                found.setdefault(name, set()).update(each for each in given if self._owner(each, PCModule) != name)
        return found

    def _outputs(self) -> dict[str, list[fx.Node]]:
        """For each layer that may hand its output over, what it makes that is read outside of it."""
        found: dict[str, list[fx.Node]] = defaultdict(list)
        for node in self.graph.nodes:
            name = self._owner(node, SOURCES) if node in self.activations else None
            if name is not None and any(self._owner(user, SOURCES) != name for user in node.users):
                found[name].append(node)
        return found

    def _owner(self, node: fx.Node, kind: type[nn.Module] | tuple[type[nn.Module], ...]) -> str | None:
        """The first name of the module that makes a call, if it is of this kind."""
        who = caller(node) if node.op == "call_function" else None
        module = self.modules.get(who) if who is not None else None
        return self.first[id(module)] if isinstance(module, kind) else None

    def _refusal(self, name: str) -> str | None:
        norm = self.modules[name]
        assert isinstance(norm, _BatchNorm)
        if type(norm) not in NORMS:
            return f"{type(norm).__name__} is not nn.BatchNorm1d, nn.BatchNorm2d or nn.BatchNorm3d itself"
        if self.norm_calls[name] > 1:
            return f"it is called {self.norm_calls[name]} times"
        if not norm.affine:
            return "it has no weight and bias"
        if hooked(norm):
            return "it has hooks, which want tensors"
        if not _own_forward(norm):
            return "its forward function was replaced"
        return None


def _own_forward(module: nn.Module) -> bool:
    return "forward" not in module.__dict__
