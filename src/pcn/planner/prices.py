"""What layers cost before and after a change, in every unit that a budget limits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import UninitializedParameter

from pcn.costs.count import count
from pcn.costs.usage import Usage
from pcn.errors import ConfigError
from pcn.planner.measured import Measured
from pcn.planner.units import Costs
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.plans.prospect import size_of
from pcn.running.example import Example
from pcn.running.quiet import quiet
from pcn.running.untouched import untouched

NOTHING = Measured(Usage(), {})


@dataclass(frozen=True)
class Prices:
    """Costs in some units; frozen layers train no parameters, and layers that do not run take no time.

    ``operations`` are those of the whole model, also where no rank changes them; None where nobody can tell, and then
    those of its layers count.
    """

    units: tuple[str, ...]
    measured: Measured = NOTHING
    operations: int | None = None

    def now(self, model: nn.Module, plan: Plan) -> Costs:
        """What the whole model costs as it is, which nobody knows of one that has no sizes yet."""
        for name, parameter in model.named_parameters():
            if isinstance(parameter, UninitializedParameter):
                raise ConfigError(f"{name!r} is lazy, and a budget is about the whole model: run the model once first")
        numbers = count(model)
        flops = max(sum(layer.flops_before or 0 for layer in plan.layers.values()), self.operations or 0)
        return self._asked(numbers.trainable, numbers.total, flops, self.measured.whole)

    def before(self, layer: LayerPlan) -> Costs:
        """What a layer costs as it is."""
        usage = self.measured.at(layer.name, None)
        return self._asked(layer.trainable_before, layer.size_before, layer.flops_before or 0, usage)

    def after(self, layer: LayerPlan) -> Costs:
        """What it costs after its plan."""
        usage = self.measured.at(layer.name, layer.rank, layer.output_rank)
        return self._asked(layer.trainable_after, layer.stored_after, layer.flops_after or 0, usage)

    def _asked(self, params: int, stored: int, flops: int, usage: Usage) -> Costs:
        counted = {"params": params, "stored": stored, "flops": flops}
        every = counted | {"step_ms": usage.time_ns, "memory_mib": usage.memory_bytes}
        return {unit: every[unit] for unit in self.units}


def operations(model: nn.Module, example: Example | None) -> int | None:
    """The operations of one sample through the whole model at inference; None where nobody can tell.

    >>> import torch
    >>> operations(nn.Linear(3, 2), Example.of(torch.ones(5, 3)))
    12
    """
    if example is None:
        return None
    try:
        with untouched(model), quiet():
            flops = size_of(model, example).flops_per_sample
    except Exception:  # whatever a model's own code raises on tensors without values
        return None
    return None if flops is None else round(flops)


def added(costs: Costs, *more: Costs) -> Costs:
    """Costs together.

    >>> added({"params": 2, "flops": 10}, {"params": 3, "flops": 1})
    {'params': 5, 'flops': 11}
    """
    return {unit: amount + sum(each[unit] for each in more) for unit, amount in costs.items()}


def taken_off(costs: Costs, less: Costs) -> Costs:
    """Costs without some of them."""
    return {unit: amount - less[unit] for unit, amount in costs.items()}
