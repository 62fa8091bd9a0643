"""A setting's field, and its value in the type that the field has."""

from __future__ import annotations

import math
from dataclasses import Field, field
from types import NoneType
from typing import Any, get_args

from pcn.errors import ConfigError
from pcn.planner.limits import number_or_text, read_limit
from pcn.planner.units import UNITS


def option(default: Any, help: str, **more: Any) -> Any:
    """A field with its help text for the command line; ``choices``, ``least`` and ``most`` are what it may be."""
    factory = {"default_factory": lambda: default} if isinstance(default, dict) else {"default": default}
    return field(**factory, metadata={"help": help, **more})


def switch_option(default: Any, help: str, **more: Any) -> Any:
    """A field that only tells the switch something: in a run without one it has no effect."""
    return option(default, help, of_switch=True, **more)


def checked(each: Field[Any], hint: Any, value: Any) -> Any:
    """A setting's value in its own type, or an error that says which one that is."""
    if isinstance(each.default, tuple):
        values = value if isinstance(value, list | tuple) else (value,)
        kind = str if each.name == "exclude" else float
        return tuple(_within(each, _as(each.name, kind, item)) for item in values)
    if value is None and NoneType in get_args(hint):
        return None
    if hint == dict[str, Any]:
        return _as(each.name, dict, value)
    if each.name in UNITS:
        read_limit(each.name, value := number_or_text(value))
        return value
    if {int, float} <= set(get_args(hint)):  # 1 is one, and 1.0 is all
        return value if isinstance(value, int) and not isinstance(value, bool) else _as(each.name, float, value)
    value = _as(each.name, next(kind for kind in (bool, int, float, str) if kind in (hint, *get_args(hint))), value)
    if "choices" in each.metadata and value not in each.metadata["choices"]:
        raise ConfigError(f"{each.name}={value!r}: choose one of {', '.join(each.metadata['choices'])}")
    return _within(each, value)


def _within(each: Field[Any], value: Any) -> Any:
    """The value, if it is no number, or a finite one between what the field says is the ``least`` and the ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    least, most = each.metadata.get("least", -math.inf), each.metadata.get("most", math.inf)
    if (isinstance(value, int) or math.isfinite(value)) and least <= value <= most:
        return value
    bounds = {"of at least": least, "and at most": most}
    said = "".join(f" {words} {bound:g}" for words, bound in bounds.items() if math.isfinite(bound))
    kind = "whole" if isinstance(value, int) else "finite"
    raise ConfigError(f"{each.name}={value!r}: give a {kind} number{said}")


def _as(name: str, kind: type, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is str and number:
        return str(value)  # a rank of 0.25, a switch after epoch 15
    if kind is float and number:
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "a table"}
        raise ConfigError(f"{name}={value!r}: give {names[kind]}")
    return value
