"""What a model would cost after a plan, before the plan is applied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pcn.costs.count import count, flops_per_sample
from pcn.layers import unwrap
from pcn.plans.plan import Plan
from pcn.running.copying import copied_without_values
from pcn.running.example import Example, device_of


@dataclass(frozen=True)
class Size:
    """What a model trains, stores and computes; ``flops_per_sample`` is None where nobody can tell."""

    trainable: int
    stored: int
    flops_per_sample: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Prospect:
    """A model before and after, as numbers."""

    before: Size
    after: Size
    flops_reason: str | None = None  # why no operations could be counted

    def rows(self) -> Iterator[tuple[str, int, int]]:
        """Yield (what, before, after), operations only where they are known."""
        yield "trained parameters", self.before.trainable, self.after.trainable
        yield "stored parameters", self.before.stored, self.after.stored
        if self.before.flops_per_sample is not None and self.after.flops_per_sample is not None:
            yield "FLOPs per sample", round(self.before.flops_per_sample), round(self.after.flops_per_sample)


def prospect(model: nn.Module, plan: Plan, example: Example | None) -> Prospect:
    """Say what a model costs now and what it would cost after a plan, without touching it.

    >>> import torch
    >>> from pcn import PCNConfig, make_plan
    >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    >>> example = Example.of(torch.ones(2, 64))
    >>> prospect(model, make_plan(model, None, PCNConfig(rank=8, exclude=["2"])), example).after.trainable
    1226
    """
    # Both without weights, which take no memory.
    now, changed = (copied_without_values(unwrap(model)) for _ in range(2))
    plan.reshape_(changed)
    if example is None:
        return Prospect(size_of(now, None), size_of(changed, None), "how the model is called is unknown")
    try:
        return Prospect(size_of(now, example), size_of(changed, example))
    except Exception as error:  # whatever a model's own code raises on tensors without values
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Prospect(
            size_of(now, None), size_of(changed, None), f"the model does not run without values ({said[:200]})"
        )


def size_of(model: nn.Module, example: Example | None) -> Size:
    """What a model trains and stores, and computes where it is known how it is called."""
    cost = count(model)
    if example is None:
        return Size(cost.trainable, cost.total, None)
    inputs = tree_map_only(Tensor, lambda tensor: tensor.to(device_of(model)), example.inputs)
    flops = flops_per_sample(model, inputs, forward=lambda called, given: example.with_inputs(given).run(called))
    return Size(cost.trainable, cost.total, flops)
