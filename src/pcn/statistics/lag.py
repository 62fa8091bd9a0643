"""Batch norms whose running statistics lag behind: what eval mode shows is then not what training sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcn.warn import warn

FAR = 4.0  # times the running variance, or a part of it
FEWEST = 16  # numbers of a channel in a batch: the variance of two says little
_TOLD: WeakSet[nn.Module] = WeakSet()  # models that were warned of: a training loop looks after every epoch


@contextmanager
def watching_lag(model: nn.Module, *, when: bool = True) -> Iterator[dict[str, float]]:
    """Yield by what factor the running variance of batch norms differs from that of the first batch that they read.

    Those that have not been trained yet have no running statistics to speak of.
    """
    times: dict[str, float] = {}
    with ExitStack() as hooks:
        for name, norm in model.named_modules() if when else ():
            if isinstance(norm, _BatchNorm) and norm.running_var is not None and norm.num_batches_tracked:
                handle = norm.register_forward_pre_hook(partial(_compare, name, times), with_kwargs=True)
                hooks.callback(handle.remove)
        yield times


def warn_of_lag(model: nn.Module, times: dict[str, float]) -> None:
    """Warn, once of a model, of the batch norm that is furthest off."""
    if times and max(times.values()) > FAR and model not in _TOLD:
        _TOLD.add(model)
        worst = max(times, key=lambda name: times[name])
        warn(
            f"batch norm's running statistics lag behind: at {worst} the variance of a batch and the running one "
            f"differ by a factor of {times[worst]:.3g}, so eval mode does not show what training sees. Measure with "
            'mode="batch" (analysis={"mode": "batch"} of a switch), or call pcn.recalibrate_ first'
        )


def _compare(name: str, times: dict[str, float], norm: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    x = next((each for each in (*inputs, *named.values()) if isinstance(each, Tensor)), None)
    if name in times or x is None or x.numel() < FEWEST * x.shape[1]:
        return
    variance = x.detach().float().var(tuple(each for each in range(x.dim()) if each != 1), correction=0)
    ratio = (variance + norm.eps) / (norm.running_var.float() + norm.eps)
    times[name] = float(torch.exp(ratio.log().abs().median()))
