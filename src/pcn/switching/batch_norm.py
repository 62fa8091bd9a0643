"""Batch norm's running statistics after the switch: those of the parent, or measured anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from pcn.errors import StatisticsError
from pcn.example import Example, Forward, device_of
from pcn.layers import unwrap
from pcn.untouched import same_modes

BatchNorm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def recalibrate_(model: nn.Module, batches: Iterable[Any], forward: Forward | None = None) -> int:
    """Measure the running means and variances of every batch norm anew, each batch counting the same.

    Everything but batch norm runs in eval mode, so that no dropout is in the way. Returns the number of batches; on
    an error everything is as before.

    >>> model = nn.Sequential(nn.BatchNorm1d(2))
    >>> recalibrate_(model, [torch.tensor([[0.0, 1.0], [2.0, 3.0]])]), model[0].running_mean
    (1, tensor([1., 2.]))
    """
    model = unwrap(model)
    norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    if not norms:
        return 0
    kept = [(norm, norm.momentum, {k: b.clone() for k, b in norm.named_buffers()}) for norm in norms]
    count = 0
    try:
        with same_modes(model), torch.compiler.set_stance("force_eager"):
            model.eval()
            for norm in norms:
                norm.train()
                norm.reset_running_stats()
                norm.momentum = None  # the plain average over batches
            for batch in batches:
                Example.of(batch, forward, device_of(model)).call(model)
                count += 1
        if not count:
            raise StatisticsError("there was no batch to recalibrate batch norm on: give a list or a data loader")
    except BaseException:
        for norm, _, buffers in kept:
            norm.load_state_dict(buffers, strict=False)
        raise
    finally:
        for norm, momentum, _ in kept:
            norm.momentum = momentum
    return count
