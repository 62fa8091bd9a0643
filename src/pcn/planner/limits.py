"""One limit of a budget as a person gives it: an amount, or a fraction of what the model takes now."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from numbers import Integral, Real

from pcn.errors import ConfigError
from pcn.planner.units import UNITS
from pcn.rank_rules import is_number

NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


def read_limit(name: str, given: object) -> tuple[Fraction, bool]:
    """How much a limit allows, in its unit or of what is taken now, and whether it is a fraction of that.

    A float up to 1.0 is a fraction and other numbers are amounts; text says with a sign which of them it is.

    >>> read_limit("step_ms", 0.3) == read_limit("step_ms", "30%")
    True
    >>> read_limit("step_ms", "0.3 ms")
    (Fraction(3, 10), False)
    """
    value, of_now = _signed(given, UNITS[name].called) if isinstance(given, str) else _bare(given)
    whole = of_now or UNITS[name].measured or value.denominator == 1
    if value <= 0 or (of_now and value > 1) or not whole:
        raise ConfigError(f"{name}={given!r}: give {_wanted(name)}{_unquoted(name, given)}")
    return value, of_now


def number_or_text(given: object) -> object:
    """Text that is a number and nothing else as that number, as Python would read it; all else as it is.

    >>> number_or_text("1"), number_or_text("1.0"), number_or_text("0.3 ms")
    (1, 1.0, '0.3 ms')
    """
    if isinstance(given, str):
        for kind in (int, float):
            with suppress(ValueError):
                return kind(given)
    return given


def _bare(given: object) -> tuple[Fraction, bool]:
    if isinstance(given, Integral) and not isinstance(given, bool):  # numpy's whole numbers too
        return Fraction(int(given)), False
    if isinstance(given, Real) and is_number(given):
        value = Fraction(str(float(given)))  # 0.29 of 100 is 29, to the last one
        return value, value <= 1
    return Fraction(0), False


def _signed(given: str, unit: str) -> tuple[Fraction, bool]:
    match = re.fullmatch(rf"({NUMBER})\s*(%|{unit})", given.strip(), re.IGNORECASE)
    if match is None:
        return Fraction(0), False
    return (Fraction(match[1]) / 100, True) if match[2] == "%" else (Fraction(match[1]), False)


def _wanted(name: str) -> str:
    if not UNITS[name].measured:
        return "a number of them, or a fraction in (0, 1] such as 0.25 or '25%'"
    unit = UNITS[name].called
    return f"a number of {unit}, or a fraction in (0, 1]; as text either may be below 1: '0.5 {unit}' or '50%'"


def _unquoted(name: str, given: object) -> str:
    """What to write in the place of a number in quotes, which does not say whether it is an amount or a fraction."""
    number = number_or_text(given)
    if number is given:
        return ""
    with suppress(ConfigError):
        read_limit(name, number)
        return f". Text must say which of the two it is: write {name}={number} without quotes"
    return ""
