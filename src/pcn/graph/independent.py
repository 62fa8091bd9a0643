"""What depends on no sample: it is computed once, however many samples there are."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
# What these put out may hold a row for every sample, though they read none. So may what others put out, as in
# cat([query] * batch) or Embedding(arange(batch)), and layers on it count as run once: the graph holds sizes as plain
# numbers, and one that is the batch's by chance would look the same.
SIZED = {aten.expand, aten.repeat, aten.new_empty, aten.new_full, aten.new_ones, aten.new_zeros}
# These read no tensor, and mostly count along something else than samples: positions in a text, say.
COUNTING = {aten.arange, aten.linspace}


def is_independent(operator: Any, read: list[bool]) -> bool:
    """Say whether an operator's output depends on no sample, given which of the tensors that it reads do not.

    >>> is_independent(aten.mm.default, [True, True]), is_independent(aten.mm.default, [False, True])
    (True, False)
    """
    packet = getattr(operator, "overloadpacket", None)
    return packet in COUNTING or (bool(read) and all(read) and packet not in SIZED)
