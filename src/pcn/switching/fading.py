"""A soft switch: what the cut would take away fades over some steps first, so that the cut itself takes nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from pcn.errors import CheckpointError, ConfigError
from pcn.layers import canonical_weight, unwrap
from pcn.maths.products import response_to_constant
from pcn.maths.transform import dropped_part
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.rewriting.bases import Bases, Basis
from pcn.rewriting.edit import rewritten
from pcn.rewriting.surgery import with_average

HALF_STEPS = 16  # in which weights of half precision fade


@dataclass
class Fading:
    """A plan whose layers lose, step by step, the part of their weights that its bases do not hold.

    The model stays as it is, and what its gradients put back fades with the rest. After the last step nothing of that
    part is left: in train mode the plan then changes nothing.
    """

    plan: Plan
    bases: Bases
    steps: int
    done: int = 0
    noted: int = -1  # steps that were done when the last epoch ended; -1 where none has ended since it began

    def __post_init__(self) -> None:
        for layer in self.plan.transformed:
            if layer.centred and not layer.bias and not layer.batch_normed:
                raise unfading(layer.name)

    @property
    def over(self) -> bool:
        return self.done >= self.steps

    def check_moves(self) -> None:
        """Raise at the end of an epoch in which no step was told."""
        if self.done == self.noted:
            raise ConfigError("nothing faded in this epoch: with fade=, call switch.after_step(...) after every step")
        self.noted = self.done

    @torch.no_grad()
    def step_(self, model: nn.Module, ema: nn.Module | None = None) -> None:
        """Take one step's share away, in place; an averaged copy fades alike."""
        self.done += 1
        base = unwrap(model)
        for copy in with_average(base, ema):
            for layer in self.plan.transformed:
                module = copy.get_submodule(layer.name)
                share = self._share(canonical_weight(module).dtype)
                if share:
                    _shrink_(module, layer, self.bases[layer.name], share)

    def _share(self, dtype: torch.dtype) -> float:
        """What goes now, of what is left; half precision goes in some large steps, as small ones would round away."""
        every = 1 if torch.finfo(dtype).bits > 16 else -(-self.steps // HALF_STEPS)
        if self.done % every and not self.over:
            return 0.0
        before = (self.done - 1) // every * every
        return (self.done - before) / (self.steps - before)

    def state_dict(self) -> dict[str, Any]:
        tensors = {
            name: {each.name: getattr(basis, each.name) for each in fields(Basis)} for name, basis in self.bases.items()
        }
        return {
            "plan": self.plan.to_json(),
            "bases": tensors,
            "steps": self.steps,
            "done": self.done,
            "noted": self.noted,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Fading:
        known = {each.name for each in fields(Basis)}
        if any(tensors.keys() != known for tensors in state["bases"].values()):
            raise CheckpointError("the state of a switch that fades is of another version of pcn: resume with that one")
        bases = {name: Basis(**tensors) for name, tensors in state["bases"].items()}
        noted = state.get("noted", -1)  # states without it do not tell
        return cls(Plan.from_json(state["plan"]), bases, state["steps"], state["done"], noted)


def unfading(name: str) -> ConfigError:
    """What is wrong with a layer whose weight cannot fade without its output losing its mean."""
    return ConfigError(
        f"{name!r} cannot fade: it has no bias, and no batch norm that trains and could do without; give it one, "
        "or have it read its input as it is (centred=False)"
    )


def _shrink_(module: nn.Module, layer: LayerPlan, basis: Basis, share: float) -> None:
    """Take a share of what the bases do not hold off a weight; the bias makes up for its response to the mean."""
    weight = canonical_weight(module)
    exact = weight.double()
    lost = dropped_part(exact, rewritten(layer, basis, exact, None), layer.groups)
    weight.copy_(exact - share * lost)
    if isinstance(module.bias, Tensor):
        module.bias.copy_(module.bias + share * response_to_constant(lost, basis.mean, layer.groups))
