"""The front door: look, plan, apply."""

from __future__ import annotations

from torch import nn

from pcn.config import PCNConfig
from pcn.planner.budget import Budget, Limit, as_budget, config_of
from pcn.planner.reachable import check_reachable
from pcn.planner.within import measure_first
from pcn.plans.making import make_plan
from pcn.plans.nothing import warn_of_nothing
from pcn.plans.plan import Plan, check_untransformed
from pcn.running.example import Batches, Forward, first_of, opened, repeatable
from pcn.running.optimizers import Optimizers
from pcn.running.refusals import check_changeable
from pcn.running.untouched import Mode
from pcn.statistics import analyze


def compress_(
    model: nn.Module,
    batches: Batches,
    config: PCNConfig | Budget | None = None,
    *,
    params: Limit = None,
    flops: Limit = None,
    step_ms: Limit = None,
    memory_mib: Limit = None,
    stored: Limit = None,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    forward: Forward | None = None,
    mode: Mode | None = None,
    strict: bool = False,
) -> Plan:
    """Turn a model into its principal component network in place, and return the plan that was applied.

    ``params``, ``flops``, ``step_ms``, ``memory_mib`` and ``stored`` are a budget (:class:`pcn.Budget`, which can be
    given whole in place of the configuration): ranks are then chosen to fit it, and in a model that stands in train
    mode batch norm counts as it does there, unless ``mode`` says otherwise (see :func:`pcn.analyze`). The optimizer,
    when given, goes on with the new parameters; where several train the model, give a list of all. One that is there
    and not given would train nothing any more, which is warned of where parameters have gradients. ``ema`` and
    ``strict`` are those of :meth:`Plan.apply_`.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))
    >>> plan = compress_(model, [torch.randn(512, 20)], PCNConfig(rank=0.25, exclude=["0"]))
    >>> model[2]
    PCLinear(in_features=64, out_features=64, bias=True, rank=16)
    """
    check_untransformed(model)
    check_changeable(model, optimizer)  # what cannot be followed shows before anything is measured
    measured = None
    limits = {"params": params, "flops": flops, "step_ms": step_ms, "memory_mib": memory_mib, "stored": stored}
    wish = as_budget(config, **limits) or config or PCNConfig()
    if isinstance(wish, Budget):
        wish = wish.trained_by(optimizer)
        check_reachable(model, wish)
        batches = repeatable(batches) if wish.needs_batches else batches
        first, batches = first_of(batches) if wish.measures else (None, batches)
        measured = measure_first(model, first, wish, forward=forward)
    options = config_of(wish)
    needed = options.needs_gradients
    mode = mode or ("batch" if isinstance(wish, Budget) and model.training else "eval")
    stats = analyze(model, opened(batches), forward=forward, exclude=options.exclude, gradients=needed, mode=mode)
    plan = make_plan(model, stats, wish, batches=batches, measured=measured)
    if not isinstance(wish, Budget) or not plan.trainable_before:  # a budget may be met as it is
        warn_of_nothing(plan, "compress_")
    return plan.apply_(model, stats, optimizer=optimizer, ema=ema, strict=strict)
