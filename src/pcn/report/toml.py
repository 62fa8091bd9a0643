"""The settings of a run as TOML, without those that a report's slider chooses anew."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from pcn.training.settings import BUDGET, Settings

CHOSEN = ("pcn", "rank", *BUDGET, "output_rank", "kernel_rank", "keep_outputs", "layers", "exclude", "skip_larger")


def same_run(settings: Settings) -> str:
    """The settings that differ from the defaults, one a line; a run that never switched is told when to.

    >>> print(same_run(Settings(epochs=3, rank="95%", drops=(1.0,), schedule="drops", switch_at="2")))
    epochs = 3
    schedule = "drops"
    drops = [1.0]
    switch_at = "2"
    <BLANKLINE>
    """
    lines, defaults = [], Settings()
    for each in fields(settings):
        value, default = getattr(settings, each.name), getattr(defaults, each.name)
        if each.name == "switch_at":
            value = "accuracy slows" if value == default else value
        if each.name not in CHOSEN and value != default:
            lines.append(f"{each.name} = {toml_value(value)}{_left_out(value)}\n")
    return "".join(lines)


def toml_value(value: Any) -> str:
    """A value as TOML writes it; what is None in a mapping is left out, as TOML has no such value.

    >>> toml_value({"a b": [1, 2.5, True], "c": 'say "x"'})
    '{ "a b" = [1, 2.5, true], "c" = "say \\\\"x\\\\"" }'
    """
    if isinstance(value, dict):
        known = {key: item for key, item in value.items() if item is not None}
        return "{ " + ", ".join(f"{_text(key)} = {toml_value(item)}" for key, item in known.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return _text(value)


def _text(value: Any) -> str:
    """As JSON writes it, but for characters that TOML wants as they are, and one that it wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _left_out(value: Any) -> str:
    missing = [str(key) for key, item in value.items() if item is None] if isinstance(value, dict) else []
    return f"  # and null for {', '.join(missing)}, which TOML cannot say" if missing else ""
