"""What the callbacks share: a switch that is made once model and optimizer are known, and hears of each epoch once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from pcn.config import PCNConfig
from pcn.errors import ConfigError, PlanError, suggest
from pcn.planner.budget import Budget
from pcn.plans.plan import Plan, get_plan
from pcn.running.example import Batches, Example, checked_batches
from pcn.running.optimizers import Optimizers
from pcn.saving.model_folder import PLAN_FILE
from pcn.statistics import Statistics
from pcn.switching import Switch
from pcn.switching.rules import AfterEpoch, as_switch_rule
from pcn.warn import warn
from pcn.whole_files import write_whole

OPTIONS = [field.name for field in fields(Switch) if field.init and field.name not in ("model", "optimizer", "group")]
State = dict[str, Any]
Convert = Callable[[Any], Any]
Wish = PCNConfig | Budget | None


class CallbackSwitch:
    """A switch by its options, and what it has been told.

    ``metric`` names the validation accuracy among what the framework logs; with it, an epoch that was not validated is
    passed by. The last accuracy seen is kept until the epoch's end has been told.
    """

    def __init__(self, batches: Batches, config: Wish, metric: str | None, options: dict[str, Any]) -> None:
        for name in options:
            if name not in OPTIONS:
                known = suggest(name, OPTIONS) or f"; there are {', '.join(OPTIONS)}"
                raise ConfigError(f"there is no option {name!r}{known}")
        rule = as_switch_rule(options.get("at", Switch.at))
        if rule == AfterEpoch(0):
            raise ConfigError(
                "at=0 is before any training: call pcn.compress_ on the model before it is given to the framework"
            )
        if metric is None and getattr(rule, "needs_accuracy", False):
            raise ConfigError(f"{rule!r} needs metric=..., the name under which validation logs its accuracy")
        self._accuracy: float | None = None
        self._logged: dict[str, None] | None = None  # every name since then, None where nothing was validated
        self._given = self._batches = batches
        self._metric, self._options = metric, {"config": config, **options}
        self._switch: Switch | None = None
        self._ended: tuple[Plan | None, State, Statistics | None] = None, {}, None
        self._epoch = 0

    @property
    def plan(self) -> Plan | None:
        """The plan, once it was applied."""
        return self._ended[0] if self._switch is None else self._switch.plan

    @property
    def statistics(self) -> Statistics | None:
        """What the plan was made from, with ``keep_statistics``."""
        return self._ended[2] if self._switch is None else self._switch.statistics

    def begin(
        self, model: nn.Module, optimizer: Optimizers, state: State | None, convert: Convert | None = None
    ) -> None:
        """Start a run; with a saved state, model and optimizers get the shape of its plan, if it has one.

        ``convert`` is what the framework does to each batch of its own before the model sees it.
        """
        options = self._options
        if convert is not None:
            self._batches = converted(self._given, convert)
            options = {**options, "example": _converted_example(options.get("example"), convert)}
        self._switch = Switch(model, optimizer, **options)
        self._switch.expect_epochs()
        self._epoch, self._accuracy, self._logged = 0, None, None
        if state is not None:
            self._switch.load_state_dict(state["switch"])
            self._epoch, self._accuracy = state["switch"]["epoch"], state["accuracy"]

    def state_dict(self) -> State:
        """What :meth:`begin` needs to go on; empty before the first run."""
        if self._switch is None:
            return self._ended[1]
        return {"switch": self._switch.state_dict(), "accuracy": self._accuracy}

    def end(self) -> None:
        """Let go of model and optimizers; the plan, the state and what was asked to be kept stay."""
        self._ended, self._switch = (self.plan, self.state_dict(), self.statistics), None

    def warn_if_it_never_came(self) -> None:
        """Say at the end of training that the model is still the whole one, where it is."""
        if self._switch is not None:
            warn_if_whole(self._switch, " (the one after an epoch comes when the next one starts)")

    def after_validation(self, logged: Mapping[str, Any]) -> None:
        """Tell what a validation has logged; it need not hold the accuracy, and outside training it is ignored."""
        if self._switch is None or self._metric is None:
            return
        self._logged = {**(self._logged or {}), **dict.fromkeys(logged)}
        if self._metric in logged:
            self._accuracy = _number(self._metric, logged[self._metric])

    def after_epoch(self, epoch: int) -> Plan | None:
        """Tell how many epochs are done; a number told before is ignored, as is 0."""
        if self._switch is None or epoch <= self._epoch:
            return None
        if self._metric is not None and self._accuracy is None:
            _check_unvalidated(self._metric, self._logged)
            return None
        accuracy, self._accuracy, self._logged, self._epoch = self._accuracy, None, None, epoch
        return self._switch.after_epoch(epoch, self._batches, accuracy=accuracy)

    def after_step(self, step: int) -> Plan | None:
        """Tell how many optimizer steps are done."""
        return None if self._switch is None else self._switch.after_step(step, self._batches)


def _number(metric: str, value: Any) -> float:
    """A metric as Python's own number: a checkpoint with NumPy's is not read as plain values."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"validation logged {metric!r} as {value!r}: log one number") from error


def _check_unvalidated(metric: str, logged: Collection[str] | None) -> None:
    """Raise when an epoch has no accuracy although it was validated."""
    if logged is not None:
        raise ConfigError(
            f"metric={metric!r} is not among what validation logged ({', '.join(logged) or 'nothing'})"
            f"{suggest(metric, logged)}"
        )


@dataclass(frozen=True)
class Converted:
    """Batches that can be gone over again and again, each converted when its turn comes."""

    batches: Iterable[Any]
    convert: Convert

    def __iter__(self) -> Iterator[Any]:
        return map(self.convert, self.batches)


def converted(batches: Batches, convert: Convert) -> Batches:
    """The same kind of batches (a function that opens them, an iterator, or what can be gone over again), converted."""
    if callable(batches):
        return lambda: Converted(checked_batches(batches()), convert)
    given = checked_batches(batches)
    return map(convert, given) if isinstance(given, Iterator) else Converted(given, convert)


def _converted_example(example: Any, convert: Convert) -> Any:
    return example.with_inputs(convert(example.inputs)) if isinstance(example, Example) else convert(example)


def warn_if_whole(switch: Switch, when: str = "") -> None:
    """Warn that training has ended without the switch, where it has."""
    if switch.plan is None:
        what = "was still fading in" if switch.begun else f"has not come{when}"
        warn(
            f"training has ended and the switch, at={switch.at!r}, {what}: the model is still whole. Let it come "
            "earlier, train longer, or resume; pcn.compress_ makes the trained model smaller as it is"
        )


def write_plan(model: nn.Module, folder: Path) -> None:
    """Write a switched model's plan beside its weights, for ``pcn.load``; beside a whole one's there is none."""
    plan = get_plan(model)
    if plan is None:
        (folder / PLAN_FILE).unlink(missing_ok=True)  # of another model that was saved there
    else:
        write_whole(folder / PLAN_FILE, plan.to_json().encode())


def plan_in(state: State | None, model: nn.Module) -> Plan | None:
    """The plan in a saved state, if its run had switched; raise when only this model has."""
    text = None if state is None else state["switch"]["plan"]
    if text is None and get_plan(model) is not None:
        raise PlanError(
            "the checkpoint was written before the switch, and this model has been switched already: build it anew"
        )
    return None if text is None else Plan.from_json(text)


@contextmanager
def loading_optimizers(models: Collection[nn.Module], *, made_switched: bool) -> Iterator[None]:
    """Say of an optimizer's state that does not fit in which form, whole or switched, the model has to be given.

    A bias that a layer gains at the switch joins its weight's group. In an optimizer that was made from a switched
    model it stands where whoever makes the groups puts biases.
    """
    try:
        yield
    except ValueError as error:
        if "parameter group" not in str(error) or all(get_plan(model) is None for model in models):
            raise
        here, there = ("switched already", "whole") if made_switched else ("whole", "switched already")
        how = "build it anew, without pcn.load" if made_switched else "pcn.load it from what the run was begun with"
        raise PlanError(
            f"the optimizer's state does not fit: {error}. Where layers gained a bias, its group depends on the model "
            f"that the optimizer is made from, which is {here} here. If it was {there} where the run was begun, {how}, "
            "and resume with that"
        ) from error
