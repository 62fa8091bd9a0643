"""What the callbacks share: a switch that is made once model and optimizer are known, and hears of each epoch once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from pcn.errors import ConfigError, PlanError, suggest
from pcn.plans.plan import Plan, get_plan
from pcn.running.example import Batches
from pcn.running.optimizers import Optimizers
from pcn.saving.model_folder import PLAN_FILE
from pcn.switching import Switch
from pcn.switching.rules import as_switch_rule
from pcn.whole_files import write_whole

OPTIONS = [field.name for field in fields(Switch) if field.init and field.name not in ("model", "optimizer", "group")]
State = dict[str, Any]


class CallbackSwitch:
    """A switch by its options, and what it has been told.

    ``metric`` names the validation accuracy among what the framework logs; with it, an epoch that was not validated is
    passed by. ``accuracy`` is the last one seen, until the epoch's end has been told.
    """

    def __init__(self, batches: Batches, metric: str | None, options: dict[str, Any]) -> None:
        for name in options:
            if name not in OPTIONS:
                raise ConfigError(
                    f"there is no option {name!r}{suggest(name, OPTIONS)}; there are {', '.join(OPTIONS)}"
                )
        rule = as_switch_rule(options.get("at", Switch.at))
        if metric is None and getattr(rule, "needs_accuracy", False):
            raise ConfigError(f"{rule!r} needs metric=..., the name under which validation logs its accuracy")
        self.accuracy: float | None = None
        self._batches, self._metric, self._options = batches, metric, options
        self._switch: Switch | None = None
        self._ended: tuple[Plan | None, State] = None, {}
        self._epoch = 0

    @property
    def plan(self) -> Plan | None:
        """The plan, once it was applied."""
        return self._ended[0] if self._switch is None else self._switch.plan

    def begin(self, model: nn.Module, optimizer: Optimizers, state: State | None) -> None:
        """Start a run; with a saved state, model and optimizers get the shape of its plan, if it has one."""
        self._switch = Switch(model, optimizer, **self._options)
        self._epoch, self.accuracy = 0, None
        if state is not None:
            self._switch.load_state_dict(state["switch"])
            self._epoch, self.accuracy = state["switch"]["epoch"], state["accuracy"]

    def state_dict(self) -> State:
        """What :meth:`begin` needs to go on; empty before the first run."""
        if self._switch is None:
            return self._ended[1]
        return {"switch": self._switch.state_dict(), "accuracy": self.accuracy}

    def end(self) -> None:
        """Let go of model, optimizers and statistics; the plan and the state stay."""
        self._ended, self._switch = (self.plan, self.state_dict()), None

    def accuracy_in(self, logged: Mapping[str, Any]) -> Any:
        """Find the accuracy among what was logged; None when none is asked for."""
        if self._metric is None:
            return None
        if self._metric not in logged:
            raise ConfigError(
                f"metric={self._metric!r} is not among what validation logged ({', '.join(logged) or 'nothing'})"
                f"{suggest(self._metric, logged)}"
            )
        return logged[self._metric]

    def after_epoch(self, epoch: int) -> Plan | None:
        """Tell how many epochs are done; a number told before is ignored, as is 0."""
        if self._switch is None or epoch <= self._epoch or (self._metric is not None and self.accuracy is None):
            return None
        accuracy, self.accuracy, self._epoch = self.accuracy, None, epoch
        return self._switch.after_epoch(epoch, self._batches, accuracy=accuracy)

    def after_step(self, step: int) -> Plan | None:
        """Tell how many optimizer steps are done."""
        return None if self._switch is None else self._switch.after_step(step, self._batches)


def write_plan(model: nn.Module, folder: Path) -> None:
    """Write a switched model's plan beside its weights, for ``pcn.load``."""
    plan = get_plan(model)
    if plan is not None:
        write_whole(folder / PLAN_FILE, plan.to_json().encode())


def plan_in(state: State | None, model: nn.Module) -> Plan | None:
    """The plan in a saved state, if its run had switched; raise when only this model has."""
    text = None if state is None else state["switch"]["plan"]
    if text is None and get_plan(model) is not None:
        raise PlanError(
            "the checkpoint was written before the switch, and this model has been switched already: build it anew"
        )
    return None if text is None else Plan.from_json(text)
