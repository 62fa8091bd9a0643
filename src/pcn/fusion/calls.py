"""What single calls in a captured graph do, and who reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from pcn.graph.trace import op_name

ADD = ("aten.add", "aten.add_")
POOLS = ("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d")


def module_stack(node: fx.Node) -> list[tuple[str, str]]:
    """The modules during whose forward a call happened, from the outside in: which call of each, and its name."""
    stack = node.meta.get("nn_module_stack") or {}
    return [(key, path.removeprefix("model").removeprefix(".")) for key, (path, _) in stack.items()]


def only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def is_average(node: fx.Node) -> bool:
    """Whether a node averages over all positions, for which nothing is kept but sizes."""
    if op_name(node) == "aten.mean":
        return True
    sizes = node.args[1] if op_name(node) in POOLS else None
    return isinstance(sizes, Sequence) and all(size == 1 for size in sizes)


def adds(node: fx.Node, norm: fx.Node) -> bool:
    """Whether a call adds two tensors of one shape and dtype."""
    if op_name(node) not in ADD or node.kwargs or len(node.args) != 2:
        return False
    if op_name(node).endswith("_") and node.args[0] is not norm:  # what is written to is not ours
        return False
    values = [value.meta.get("val") if isinstance(value, fx.Node) else None for value in node.args]
    described = [(value.shape, value.dtype) for value in values if isinstance(value, torch.Tensor)]
    return len(described) == 2 and described[0] == described[1]


def activations(graph: fx.Graph) -> set[fx.Node]:
    """The values that depend on the model's inputs; what is made of parameters and buffers alone does not."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        given = node.op == "placeholder" and not node.name.startswith(("p_", "b_", "c_"))
        if given or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found
