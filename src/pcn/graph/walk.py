"""One pass over a captured graph: the channels of every call by its rule, and what there is to know about layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from pcn.graph import losses, parts, pointwise, reshaping, weighted  # noqa: F401  (for the rules that they register)
from pcn.graph.atoms import Atoms, Carried
from pcn.graph.independent import is_independent
from pcn.graph.rules import Call, apply_rule, refuse
from pcn.graph.trace import as_call, caller, constants, depends_on_data, op_name, shapes, sources
from pcn.graph.weighted import INPUT_INDEX, WEIGHT_ARGUMENT
from pcn.layers import layer_type, more_than_weights

# Operators that run a graph of their own in another mode.
WRAPPERS = ("wrap_with_autocast", "wrap_with_set_grad_enabled")


@dataclass(frozen=True)
class Passed:
    """One call of a graph: what is called on what, by whom, and the channels of what comes out."""

    op: str
    inputs: tuple[str, ...]
    numbers: tuple[float, ...]  # those that are computed with; sizes and positions are not among them
    who: str | None
    outputs: tuple[Carried, ...]


class Walk:
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
        self.uncounted: set[str] = set()  # layers that run on as many rows as the data says
        self.independent: set[fx.Node] = set()  # what depends on no sample
        self.mapped: list[int] = []  # over how many torch.vmap goes here: shapes are those of one of them
        self.entered, self.place = 0, ""  # graphs entered so far, and a prefix for names in the one that is followed
        self.flow: list[Passed] = []
        self.constants: list[Tensor] = []
        self.norm_after: dict[str, str] = {}
        self.norm_calls: Counter[str] = Counter()
        self.directly_read: dict[str, str] = {}
        self.visible: list[Tensor] = []  # the channels of what the model puts out

    def run(self, program: ExportedProgram) -> None:
        named = sources(program, self.model)
        self.constants = constants(program)
        inputs = program.graph_signature.user_inputs
        starts = (node for node in program.graph.nodes if node.op == "placeholder")
        self.independent = {node for node in starts if node.name not in inputs}
        given = {
            node: self._placeholder(node, named.get(node.name))
            for node in program.graph.nodes
            if node.op == "placeholder"
        }
        for value in self._follow(program.graph_module, given):
            self._pin_output(value)

    def _follow(self, module: nn.Module, carried: dict[fx.Node, Any]) -> list[Any]:
        """Go through the calls of one graph and return what it puts out."""
        assert isinstance(module, fx.GraphModule)
        for node in module.graph.nodes:
            if node.op == "get_attr":
                carried[node] = attrgetter(node.target)(module)
                self.independent.add(node)
            elif node.op == "call_function":
                carried[node] = self._call(node, carried)
                if is_independent(node.target, [value in self.independent for value in node.all_input_nodes]):
                    self.independent.add(node)
            elif node.op == "output":
                return list(cast("Any", fx.node.map_arg(node.args[0], lambda value: carried[value])))
        return []

    def _enter(self, node: fx.Node, carried: dict[fx.Node, Any]) -> list[Any]:
        """Follow the graph that runs under autocast or with gradients switched on or off."""
        at = next(i for i, value in enumerate(node.args) if isinstance(value, fx.Node))
        inner, *values = cast("Any", fx.node.map_arg(node.args[at:], lambda value: carried[value]))
        starts = [start for start in inner.graph.nodes if start.op == "placeholder"]
        given = zip(starts, node.args[at + 1 :], strict=True)
        self.independent |= {start for start, value in given if value in self.independent}
        self.entered, outside = self.entered + 1, self.place
        self.place = f"{self.entered}:"
        outputs = self._follow(inner, dict(zip(starts, values, strict=True)))
        self.place = outside
        return outputs

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
            assert isinstance(index, int)
            value = carried[container]
            return value[index] if isinstance(value, list) else value
        if call.op in WRAPPERS:
            return self._enter(node, carried)
        self._used_directly(node, call)
        if call.op == "_vmap_increment_nesting":
            self.mapped.append(call["argument0"])
        elif call.op == "_vmap_decrement_nesting":
            self.mapped.pop()
        if (norm := self._batch_norm(node)) is not None:
            self.norm_calls[norm] += 1
        if call.op in WEIGHT_ARGUMENT:
            self._reading(node, call[WEIGHT_ARGUMENT[call.op]])
        if self._holds_a_number(call.op, caller(node)):
            self.atoms.pin_all(call["input"], "an instance norm without tensors keeps its number of features")
        if depends_on_data(node):
            output = refuse(self.atoms, call, f"{call.op} meets a size that depends on the data")
        else:
            output = apply_rule(self.atoms, call)
        inputs = tuple(str(value) for value in node.all_input_nodes)
        outputs = tuple(output) if isinstance(output, list) else (output,)
        self.flow.append(Passed(call.op, inputs, call.numbers(), caller(node), outputs))
        return output

    def _used_directly(self, node: fx.Node, call: Call) -> None:
        """Note that somebody computes with a layer's own tensors, which will have other values."""
        looks_only = {"aten._assert_tensor_metadata": "a", "aten.type_as": "other", "aten.to": "other"}
        seen = call.arguments.get(looks_only.get(call.op, ""))
        for value in call.tensors():
            if value.source is not None and value is not seen:
                owner, who = self.model.get_submodule(value.source.rpartition(".")[0]), caller(node)
                if layer_type(owner) and (who is None or self.model.get_submodule(who) is not owner):
                    self.directly_read.setdefault(self.names[id(owner)], who or type(self.model).__name__)

    def _reading(self, node: fx.Node, weight: Carried) -> None:
        """Note which layer a weighted call belongs to, or that somebody uses its weight without calling it."""
        who = caller(node)
        owner = None if weight.source is None else weight.source.rpartition(".")[0]
        if owner is None or who is None:
            self.atoms.pin_all(weight, "its weight is computed or belongs to no layer")
            return
        module = self.model.get_submodule(owner)
        layer = self.names[id(module)]
        calls = self.model.get_submodule(who)
        if module is not calls:
            self.atoms.pin_all(weight, f"{who or type(self.model).__name__!r} uses its weight without calling it")
            if layer_type(calls) is not None and calls.weight is module.weight:  # which is its own as well
                self._count(node, self.names[id(calls)], _called_on(calls, node), weight)
            return
        if layer_type(module) is None:
            self.atoms.pin_all(weight, f"{layer!r} reads it, and {type(module).__name__} cannot be transformed")
            return
        if (more := more_than_weights(module)) is not None:
            self.atoms.pin_all(weight, f"{layer!r} reads it, and {more}")
        source = _called_on(module, node)
        self.reads[layer] = (*self.reads.get(layer, ()), f"{self.place}{source}")
        self._norm(node, layer, weight)
        self._count(node, layer, source, weight)

    def _count(self, node: fx.Node, layer: str, source: fx.Node, weight: Carried) -> None:
        """Count the positions at which a layer is called."""
        if depends_on_data(node):
            self.uncounted.add(layer)
            return
        spatial = _spatial(weight)
        inputs, outputs = self.positions.setdefault(layer, (0, 0))
        if source not in self.independent:
            times = math.prod(self.mapped)
            read, written = times * _positions(source, spatial), times * _positions(node, spatial)
            self.positions[layer] = (inputs + read, outputs + written)

    def _norm(self, node: fx.Node, layer: str, weight: Carried) -> None:
        """Note the batch norm that alone reads a layer's output, along the same dimension as its channels."""
        users = list(node.users)
        along = _channels_at(node, _spatial(weight))  # elsewhere for linear layers on sequences, say
        name = self._batch_norm(users[0]) if len(users) == 1 and along == 1 else None
        if name is not None and len(self.reads[layer]) == 1:
            self.norm_after[layer] = name
        else:
            self.norm_after.pop(layer, None)

    def _batch_norm(self, node: fx.Node) -> str | None:
        """The name of the batch norm that makes this call, or None."""
        who = caller(node) if op_name(node) == "aten.batch_norm" else None
        module = self.model.get_submodule(who) if who else None
        return self.names[id(module)] if isinstance(module, nn.modules.batchnorm._BatchNorm) else None

    def _holds_a_number(self, op: str, who: str | None) -> bool:
        """Whether an instance norm has no tensor that could be cut, only a number that its input is held against."""
        module = self.model.get_submodule(who) if who and op == "aten.instance_norm" else None
        return module is not None and not [*module.parameters(), *module.buffers()]

    def norms_of_one(self) -> dict[str, str]:
        """The batch norm that normalises a layer's output and nothing else, for each layer that has one."""
        return {layer: norm for layer, norm in self.norm_after.items() if self.norm_calls[norm] == 1}

    def _pin_output(self, value: Any) -> None:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Carried):
                self.atoms.pin_all(item, "its channels are visible in the model's output")
                self.visible += [label for label in item.labels if label is not None]


def _called_on(module: nn.Module, node: fx.Node) -> fx.Node:
    """What a layer is called on; circular, reflecting and replicating convolutions pad that in a call of their own."""
    source = node.args[INPUT_INDEX[op_name(node)]]
    assert isinstance(source, fx.Node)
    if getattr(module, "padding_mode", "zeros") != "zeros" and op_name(source) == "aten.pad":
        source = source.args[0]
        assert isinstance(source, fx.Node)
    return source


def _spatial(weight: Carried) -> int:
    """Along how many dimensions a layer slides its weight."""
    return max(weight.ndim - 2, 0)


def _channels_at(node: fx.Node, spatial: int) -> int:
    """The dimension of channels in what a layer reads or puts out."""
    return len(shapes(node)[0]) - spatial - 1


def _positions(node: fx.Node, spatial: int) -> int:
    """The number of positions at which a tensor holds channels."""
    shape, channels = shapes(node)[0], _channels_at(node, spatial)
    return math.prod(shape[:channels]) * math.prod(shape[channels + 1 :])
