"""A network with principal component layers, made ready to train in fused passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pcn.collectives import Ranks
from pcn.errors import ConfigError, TraceError
from pcn.fusion import fastest_forms, fuse_
from pcn.fusion.switch import fuses
from pcn.layers import unwrap
from pcn.nn import PCModule
from pcn.training.step import autocast


def check_kernels(device: torch.device) -> None:
    """Raise where there are no kernels to fuse with."""
    if not fuses(torch.empty(0, device=device)):
        raise ConfigError("fused passes need a CUDA device and Triton (pip install triton): train without --fuse")


def fuse_layers_(model: nn.Module, inputs: Tensor, ranks: Ranks, *, norms: bool) -> dict[str, Any] | None:
    """Have principal component layers run in the form that is fastest here, and say what came of it.

    With ``norms`` batch norms are fused with them. The parent is left alone: before the switch there is nothing to
    project. One process's clock decides for all.
    """
    if not any(isinstance(module, PCModule) for module in unwrap(model).modules()):
        return None
    with autocast(inputs.device):
        try:
            forms = ranks.from_one(lambda: fastest_forms(model, inputs, norms=norms))
            fusion = fuse_(model, inputs, forms=forms, norms=norms)
        except TraceError as error:
            return {"forms": {}, "left_alone": {}, "reason": str(error)}
    return {"forms": fusion.forms, "left_alone": fusion.left_alone, "reason": None}
