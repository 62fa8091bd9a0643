"""Our operators as ``torch.compile`` knows them: ready-made calls between its own kernels."""

from __future__ import annotations

from functools import cache

import torch

WRITES_GRAPHS_OUT = (2, 13)  # versions before it


@cache
def introduce_operators() -> None:
    """Tell the compiler of our operators, where meeting an unknown one is slow.

    Before an operator that it does not know yet, Inductor writes its arguments out for a log, and theirs, up to the
    inputs of the graph. Every residual sum doubles that text: in a network of sixteen blocks it has no end.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= WRITES_GRAPHS_OUT:
        return
    from torch._inductor import lowering
    from torch._library.utils import get_layout_constraint_tag

    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("pcn::"):
            operator = getattr(torch.ops.pcn, name.removeprefix("pcn::")).default
            if operator not in lowering.lowerings:
                tag = get_layout_constraint_tag(operator, with_default=True)
                lowering.make_fallback(operator, layout_constraint=lowering.tag_to_layout_constraint(tag))
