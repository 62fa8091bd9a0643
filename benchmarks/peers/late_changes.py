"""Switches that change the network again after the cut, to see whether that is worth it.

With ``carry_state=False`` the trainer makes a new optimizer at every change; bases that become parameters need that.
Epochs are given as those of a run of ``EPOCHS``; a longer one scales them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pcn.nn import PCModule
from pcn.planner.budget import Budget
from pcn.plans.plan import Plan
from pcn.rewriting.fold import fold_
from pcn.switching import Switch
from pcn.training import Trainer
from pcn.training.requests import analysis_options, pcn_config, requested
from pcn.training.switch_time import parse_switch
from peers.coordinates import balance_, decay_dense_, renew_, resize_, whiten_again_

EPOCHS = 20


def scaled(epoch: int, epochs: int) -> int:
    """The epoch of a run of so many that stands for one of a run of ``EPOCHS``.

    >>> scaled(5, 20), scaled(5, 60), scaled(3, 60), scaled(1, 4)
    (5, 15, 9, 1)
    """
    return max(1, round(epoch * epochs / EPOCHS))


class FromSettings(Switch):
    """Switches as the trainer would, to a wish in the place of the settings' own where one is given."""

    def __init__(self, trainer: Trainer, wish: Any = None, *, optimizer: Optimizer | None = None) -> None:
        settings = trainer.settings
        super().__init__(
            trainer.model,
            optimizer,
            wish or requested(settings),
            at=parse_switch(settings.switch_at),
            analysis=analysis_options(settings, pcn_config(settings)),
        )


class LateChange(FromSettings):
    """Switches to a wish, and changes the network again when an epoch is done."""

    def __init__(self, trainer: Trainer, wish: Any, again_at: int) -> None:
        super().__init__(trainer, wish, optimizer=trainer.optimizer if trainer.settings.carry_state else None)
        self.again_at, self.changed = scaled(again_at, trainer.settings.epochs), False

    def change_(self, batches: Any) -> Plan:
        """Change the network again."""
        raise NotImplementedError

    def after_epoch(self, epoch: int, batches: Any, **seen: Any) -> Plan | None:
        if self.plan is None:
            return super().after_epoch(epoch, batches, **seen)
        if self.changed or epoch < self.again_at:
            return None
        self.changed = True
        return self.change_(batches)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "changed": self.changed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.changed = state["changed"]


class TwoCuts(LateChange):
    """Cuts to a share of the parent's parameters, and later, with fresh statistics, to the budget of the settings."""

    def __init__(self, trainer: Trainer, *, first: float, again_at: int) -> None:
        self.budget = requested(trainer.settings)
        assert isinstance(self.budget, Budget)
        super().__init__(trainer, replace(self.budget, params=first), again_at)

    def change_(self, batches: Any) -> Plan:
        fold_(self.model, optimizer=self.optimizer)
        self.plan, self._wish = None, self.budget
        return self._apply(batches, None)


class BasisTrainedFirst(LateChange):
    """Trains the bases too until an epoch is done, and freezes them then."""

    def __init__(self, trainer: Trainer, *, again_at: int) -> None:
        super().__init__(trainer, requested(trainer.settings), again_at)

    def _apply(self, *arguments: Any) -> Plan:
        plan = super()._apply(*arguments)
        train_bases_(self.model, True)
        return plan

    def change_(self, batches: Any) -> Plan:
        assert self.plan is not None
        train_bases_(self.model, False)
        return self.plan

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        train_bases_(self.model, self.plan is not None and not self.changed)


class InPlace(FromSettings):
    """Changes coordinates in place, so that the optimizer stays."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer, optimizer=trainer.optimizer)


class SizedByWeights(InPlace):
    """Has coordinates so large that the numbers of W~ are as large as those of W were."""

    def _apply(self, *arguments: Any) -> Plan:
        weights = {name: tensor for name, tensor in self.model.named_parameters() if name.endswith(".weight")}
        squares = {name.removesuffix(".weight"): float(each.detach().square().mean()) for name, each in weights.items()}
        plan = super()._apply(*arguments)
        resize_(self.model, self.optimizer, squares)
        return plan


class Rewhitened(InPlace):
    """Brings the coordinates to the same variance again after every few epochs."""

    def __init__(self, trainer: Trainer, *, every: int) -> None:
        super().__init__(trainer)
        self.every = scaled(every, trainer.settings.epochs)

    def after_epoch(self, epoch: int, batches: Any, **seen: Any) -> Plan | None:
        if self.plan is None:
            return super().after_epoch(epoch, batches, **seen)
        if epoch % self.every == 0:
            whiten_again_(self.model, self.optimizer, batches())
        return None


class MoreDecay(InPlace):
    """Multiplies the optimizer's weight decay from the switch on."""

    def __init__(self, trainer: Trainer, *, times: float) -> None:
        super().__init__(trainer)
        self.times = times

    def _apply(self, *arguments: Any) -> Plan:
        plan = super()._apply(*arguments)
        for group in self.optimizer.param_groups:  # kept with the optimizer's state, so that a resumed run has it
            group["weight_decay"] *= self.times
        return plan


class DecayedDense(InPlace):
    """Decays the weights that layers stand for, as before the switch, in whichever coordinates they are."""

    def _apply(self, *arguments: Any) -> Plan:
        plan = super()._apply(*arguments)
        decay_dense_(self.model, self.optimizer)
        return plan

    def load_state_dict(self, state: dict[str, Any]) -> None:
        before = self.plan
        super().load_state_dict(state)
        if before is None and self.plan is not None:
            decay_dense_(self.model, self.optimizer)


class FactorsTrained(DecayedDense):
    """Trains bases along with what is read in them, as both factors of low rank are trained (``train_basis``)."""

    def _apply(self, *arguments: Any) -> Plan:
        plan = super()._apply(*arguments)
        balance_(self.model, self.optimizer)
        return plan


class Renewed(InPlace):
    """Gives up a share of the coordinates for directions of more variance, every few epochs until one is done."""

    def __init__(self, trainer: Trainer, *, every: int, until: int, share: float) -> None:
        super().__init__(trainer)
        epochs = trainer.settings.epochs
        self.every, self.until, self.share = scaled(every, epochs), scaled(until, epochs), share

    def after_epoch(self, epoch: int, batches: Any, **seen: Any) -> Plan | None:
        if self.plan is None:
            return super().after_epoch(epoch, batches, **seen)
        if epoch % self.every == 0 and epoch <= self.until:
            renew_(self.model, self.optimizer, batches(), self.share)
        return None


def train_bases_(model: nn.Module, trained: bool) -> None:
    """Make the bases parameters, or buffers again."""
    for layer in (module for module in model.modules() if isinstance(module, PCModule)):
        values = layer.basis.detach()
        del layer.basis
        if trained:
            layer.basis = nn.Parameter(values)
        else:
            layer.register_buffer("basis", values.clone(memory_format=torch.contiguous_format))
