"""The front door: look, plan, apply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pcn.budget import Budget, fit_budget
from pcn.config import PCNConfig
from pcn.example import Forward
from pcn.plan import Plan, check_untransformed
from pcn.planning import make_plan
from pcn.statistics import analyze


def compress_(
    model: nn.Module,
    batches: Iterable[Any],
    config: PCNConfig | None = None,
    *,
    params: int | float | None = None,
    optimizer: Optimizer | None = None,
    forward: Forward | None = None,
) -> Plan:
    """Turn a model into its principal component network in place, and return the plan that was applied.

    ``params`` is a budget of trainable parameters, as a number or a fraction of what the model has; ranks are then
    chosen to fit it (:func:`pcn.fit_budget`). The optimizer, when given, goes on with the new parameters.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))
    >>> plan = compress_(model, [torch.randn(512, 20)], PCNConfig(rank=0.25, exclude=["0"]))
    >>> model[2]
    PCLinear(in_features=64, out_features=64, bias=True, rank=16)
    """
    check_untransformed(model)
    config = config or PCNConfig()
    stats = analyze(model, batches, forward=forward, exclude=config.exclude)
    if params is not None:
        config = fit_budget(model, stats, Budget(params), config)
    return make_plan(model, stats, config).apply_(model, stats, optimizer=optimizer)
