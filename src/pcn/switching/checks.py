"""What is given to a switch, checked when it is given: what does not fit would show epochs later."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from typing import Any

from torch import nn

from pcn.errors import ConfigError, PlanError, suggest
from pcn.plans.fit import check_plan_fits
from pcn.plans.plan import Plan
from pcn.running.untouched import checked_mode
from pcn.statistics import analyze
from pcn.statistics.choice import check_numbers

# What analyze is told anyway: by the switch itself, and by its configuration.
TAKEN = ("model", "batches", "forward", "exclude", "group")
OPTIONS = tuple(name for name in inspect.signature(analyze).parameters if name not in TAKEN)
STATE = ("plan", "epoch", "accuracies", "movements", "directions")


def check_analysis(options: Mapping[str, Any]) -> None:
    """Raise unless these are arguments of :func:`pcn.analyze` that are free."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"analysis={options!r}: give arguments of pcn.analyze by name, as in {{'pool': 2}}")
    for name in options:
        if name not in OPTIONS:
            known = suggest(name, OPTIONS) or f"; give arguments of pcn.analyze out of {', '.join(OPTIONS)}"
            raise ConfigError(f"analysis has {name!r}{known}")
    check_numbers(*(options.get(name) for name in ("pool", "fraction", "max_rank", "passes")))
    checked_mode(options.get("mode", "eval"))


def checked_count(what: str, count: Any) -> int:
    """How many epochs, or steps, are done, as a number that any file can hold."""
    try:
        if isinstance(count, bool) or operator.index(count) < 0:
            raise TypeError
        return operator.index(count)
    except TypeError as error:
        raise ConfigError(f"{what}={count!r}: give how many are done, a whole number that is not negative") from error


def check_is_copy(ema: nn.Module, model: nn.Module) -> None:
    """Raise unless an averaged model has the model's parameters, by name and shape."""
    own, averaged = ({name: tuple(each.shape) for name, each in net.named_parameters()} for net in (model, ema))
    for name in {**own, **averaged}:
        if own.get(name) != averaged.get(name):
            there, here = (_of_shape(each.get(name)) for each in (averaged, own))
            raise PlanError(
                f"ema is no copy of the model: {name!r} is {there} in it and {here} in the model; give the averaged "
                "copy itself, such as copy.deepcopy(model), or what holds it as .module"
            )


def _of_shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"of shape {shape}"


def check_state(state: Mapping[str, Any]) -> None:
    """Raise unless this is the state of a switch."""
    missing = [name for name in STATE if not isinstance(state, Mapping) or name not in state]
    if missing:
        raise ConfigError(
            f"this is no state of a switch, as it has no {missing[0]!r}: give what switch.state_dict() returned"
        )


def check_leads_on(plan: Plan, model: nn.Module) -> None:
    """Raise unless a saved plan can be applied to a model."""
    try:
        check_plan_fits(plan, model)
    except PlanError as error:
        raise PlanError(
            f"the state was saved with another model: {error}; build it with the sizes that it had then"
        ) from error


def check_same(plan: Plan, own: Plan) -> None:
    """Raise unless a saved plan gives a model the shape that its own plan has given it."""
    sizes, here = _sizes(plan), _sizes(own)
    for name in {**sizes, **here}:
        if sizes.get(name) != here.get(name):
            raise PlanError(
                f"the state was saved with another plan: {name!r} has {_shown(sizes.get(name))} in it and "
                f"{_shown(here.get(name))} in this model; build the model anew and load the state into that"
            )
    if plan.slices != own.slices:
        raise PlanError(
            "the state was saved with another plan, which keeps other channels than this model does; build the model "
            "anew and load the state into that"
        )


def _sizes(plan: Plan) -> dict[str, tuple[int | None, ...]]:
    return {
        layer.name: (
            layer.rank,
            layer.output_rank,
            layer.kept_inputs,
            layer.kept_outputs,
            layer.kernel_rank,
            layer.bias_after,
        )
        for layer in plan.layers.values()
        if layer.changed
    }


def _shown(sizes: tuple[int | None, ...] | None) -> str:
    if sizes is None:
        return "all of its weights"
    rank, trained, inputs, outputs, patterns, bias = sizes
    kernels = "" if patterns is None else f" in {patterns} patterns"
    trains = f"{outputs if trained is None else trained} trained outputs, {'a' if bias else 'no'} bias"
    reads = f"all {inputs} inputs" if rank is None else f"rank {rank} of {inputs} inputs{kernels}"
    return f"{reads} and {trains}"
