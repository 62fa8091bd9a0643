"""Capturing a model's graph with ``torch.export``, and the calls that are in it."""

from __future__ import annotations

import operator
from contextlib import ExitStack
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn

from pcn.errors import TraceError, first_line
from pcn.graph.rules import Call
from pcn.memory import tensors_by_name
from pcn.running.copying import copied_around
from pcn.running.example import AsModule, Example
from pcn.running.modes import train_code_
from pcn.running.quiet import quiet
from pcn.running.seeded import same_numbers
from pcn.running.untouched import same_holdings, same_modes


def capture(model: nn.Module, example: Example, *, training: bool = False) -> torch.export.ExportedProgram:
    """Export the model as it runs at inference; raise :class:`TraceError` with the tracer's own words if it fails.

    With ``training`` its code runs as it does there (:func:`pcn.running.modes.train_code_`), with gradients, for which
    it may ask too. That is seen on a copy, as models may change themselves while they train, and always with the same
    random numbers, so that two captures can be compared.
    """
    try:
        with ExitStack() as stack:
            stack.enter_context(same_modes(model))
            stack.enter_context(same_holdings(model))
            stack.enter_context(quiet())
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            if training:
                stack.enter_context(same_numbers())
                stack.enter_context(torch.enable_grad())
                model = copied_around(model)
                train_code_(model)
            else:
                stack.enter_context(torch.no_grad())
                model.eval()
            return torch.export.export(AsModule(model, example), (example.inputs,), strict=False)
    except Exception as error:
        raise TraceError(
            f"torch.export cannot follow {type(model).__name__}: without a graph no output channels are dropped and no "
            f"operations counted (input transformations need none): {type(error).__name__}: {first_line(error)}"
        ) from error


def sources(program: torch.export.ExportedProgram, model: nn.Module) -> dict[str, str]:
    """Map placeholder names to the parameter or buffer that they stand for, by the first of its names in the model."""
    held = tensors_by_name(model)
    first: dict[int, str] = {}
    for name, tensor in held.items():
        first.setdefault(id(tensor), name)
    names = {name: first[id(tensor)] for name, tensor in held.items()}
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return {node: names[str(name).removeprefix("model.")] for node, name in named.items()}


def constants(program: torch.export.ExportedProgram) -> list[Tensor]:
    """The tensors that the model's code makes out of numbers."""
    names = program.graph_signature.inputs_to_lifted_tensor_constants.values()
    return [value for name in names if isinstance(value := program.constants.get(name), Tensor)]


def caller(node: fx.Node) -> str | None:
    """The name of the innermost module during whose forward a call happened, or None for the wrapper's own."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((path for path, _ in reversed(stack.values())), "")
    if path == "model":
        return ""
    return path.removeprefix("model.") if path else None


def shapes(node: fx.Node) -> list[tuple[int, ...]]:
    """The shapes of a call's outputs (an output that is no tensor counts as a scalar)."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return [tuple(v.shape) if isinstance(v, Tensor) else () for v in values]


def depends_on_data(node: fx.Node) -> bool:
    """Whether a call puts out or takes in sizes that are known only when the model runs."""
    for value in (n.meta.get("val") for n in (node, *node.all_input_nodes)):
        for item in value if isinstance(value, list | tuple) else [value]:
            sizes = item.shape if isinstance(item, Tensor) else [item]
            if any(isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool) for size in sizes):
                return True
    return False


def as_call(node: fx.Node, carried: dict[fx.Node, Any]) -> Call:
    """Describe one call with its arguments under their schema names."""
    arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: carried[n])
    schema = getattr(node.target, "_schema", None)
    names = [a.name for a in schema.arguments] if schema else []
    names += [f"argument{i}" for i in range(len(names), len(arguments[0]))]
    named = dict(zip(names, arguments[0], strict=False)) | dict(arguments[1])
    return Call(op_name(node), named, shapes(node))


def op_name(node: fx.Node) -> str:
    """What a node calls, as rules name it."""
    if node.target is operator.getitem:
        return "getitem"
    if isinstance(node.target, FunctionType):
        return node.target.__name__
    name = str(getattr(node.target, "overloadpacket", None) or node.target)
    return name.replace("::", ".")
