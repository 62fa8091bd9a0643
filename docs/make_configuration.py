"""Writes docs/configuration.md from the code: names, types, defaults and help texts stand there once.

python docs/make_configuration.py
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from torch.distributed import ProcessGroup

import pcn
from pcn.planner.units import UNITS
from pcn.training import Settings

PAGE = Path(__file__).with_name("configuration.md")

INTRODUCTION = """\
# Configuration

<!-- Made by docs/make_configuration.py from the code; change the code's own words instead. -->

What can be asked for, with every name, type and default. In Python:

```python
import pcn

config = pcn.PCNConfig(
    rank=pcn.ExplainedVariance(0.95),  # for every layer ...
    layers={
        "features.*": pcn.LayerRule(rank=0.5),  # ... but half of the width here (a glob) ...
        "fc1": pcn.LayerRule(rank=50, keep_outputs=90),  # ... and exactly this there (a name)
    },
    exclude=["stem"],  # leave alone
)
```

Give it to `pcn.make_plan`, `pcn.compress_` or `pcn.Switch`. Layer names are those of `model.named_modules()`. A name
that no layer has is an error; a layer that cannot do what a glob asks is left alone, with the reason in the plan.
On the command line and in TOML files the same words are [settings of `pcn train`](#settings-of-pcn-train).
"""

ORDERS = """\
`order` says how a layer reads an input of which channels were dropped: `truncate_first`, the paper's choice, counts
them as zero; `project_first` and `kept_block` count them as their mean, and `kept_block` also finds the directions anew
among those that are left. A convolution that pads with zeros then counts them as their mean around its images too,
where the wide network read zeros.
"""

RANKS = """\
Wherever a rank is asked for: a whole number is `Fixed`, a fraction is `Fraction`, and any object with a method
`rank(spectrum) -> int` is a rule too ([how to write one](extending.md#a-rank-rule)).
"""

OUTPUTS = """\
For `keep_outputs`: a number of channels, a fraction of them, or a rule.
"""

WORTH = """\
For `worth=`, what a layer's directions are worth ([how a budget chooses](planner.md)):
"""

WHEN = """\
For `at=`: a number of epochs, or one of these. Any object with a method `due(progress) -> bool` is a rule too.
"""

# What the code has no room to say beside the field.
BESIDE = {
    ("Switch", "model"): "the model, or its DistributedDataParallel or compiled wrapper",
    ("Switch", "optimizer"): "the optimizer that trains it, or a list of all that do; None where there is none",
    ("Switch", "config"): "what every layer keeps; None for the defaults",
    ("Switch", "at"): "[when](#when-to-switch)",
    ("Switch", "forward"): "`forward(model, batch)`, where batches are not tensors, mappings or (inputs, targets)",
    ("Switch", "log"): "a logger that gets the effective dimensions after every epoch",
    ("PCNConfig", "rank"): "how many directions a layer reads its input in; None: all layers stay as they are",
    ("PCNConfig", "keep_outputs"): "how many of its outputs a layer keeps; None: all",
    ("PCNConfig", "layers"): "rules for single layers, by name or glob",
    ("PCNConfig", "exclude"): "layers to leave alone, by name or glob",
    ("PCNConfig", "order"): "see below",
    ("LayerRule", "rank"): "how many directions these layers read their input in; None: as it is",
    ("LayerRule", "keep_outputs"): "how many of their outputs they keep; None: all",
    ("LayerRule", "order"): "None: that of the configuration",
    **{("Switch", unit): f"short for `config=Budget({unit}=...)`" for unit in UNITS},
    ("Switch", "fade"): "steps over which what the cut takes away fades first; needs `after_step` after each of them, "
    "and neither `keep_outputs`, `drop_channels` nor `keep_dropped`",
    ("Budget", "params"): 'trained parameters: a number (1 is one), or a fraction of now (1.0 and `"100%"` are all)',
    ("Budget", "flops"): "operations per sample in matrix products and convolutions, likewise",
    ("Budget", "step_ms"): 'milliseconds of a training step (5, `"0.5 ms"`), or a fraction of now (0.5, `"50%"`)',
    ("Budget", "memory_mib"): 'MiB that training holds (5, `"0.5 MiB"`), or a fraction of now (0.5, `"50%"`)',
    (
        "Budget",
        "stored",
    ): "all numbers that are stored, bases and running statistics too: a number, or a fraction of now",
    ("Switch", "measured"): "costs from `pcn.measure_costs`, for a budget of time or memory",
    (
        "Switch",
        "keep_statistics",
    ): "leave what the plan was made from, which may be large, in `statistics`",
    ("Budget", "config"): "which layers may change, and all options; layers with a rule of their own keep to it",
}

SETTINGS = """\
As flags (`--learning-rate 0.1`), in a TOML file (`learning_rate = 0.1`) or in Python
(`pcn.training.Settings(learning_rate=0.1)`). Flags win over the file. What belongs to the machine and not to the result
(`--out`, `--device`, `--threads`, `--compile`, `--fuse`) stands in `pcn train --help`. Two of these draw other random
numbers all the same, so that the result differs as with another seed: `--compile` in a network with dropout, and
`--device` there and for the order of the data. The others change at most how numbers are rounded.
"""


def page() -> str:
    parts = [
        INTRODUCTION,
        section("## PCNConfig", pcn.PCNConfig),
        ORDERS,
        section("## LayerRule", pcn.LayerRule),
        "## Rank rules\n",
        RANKS,
        rules(pcn.ExplainedVariance, pcn.Threshold, pcn.Fraction, pcn.Fixed),
        "## Output rules\n",
        OUTPUTS,
        rules(pcn.L1Threshold),
        section("## Budget", pcn.Budget),
        WORTH,
        rules(pcn.Response, pcn.Evenly, pcn.Hedged, pcn.Taylor, pcn.Divergence),
        section("## Switch", pcn.Switch),
        "## When to switch\n",
        WHEN,
        rules(pcn.AfterEpoch, pcn.AfterStep, pcn.AccuracySlows, pcn.SubspacesSettle),
        "## Settings of pcn train\n",
        SETTINGS,
        settings_table(),
    ]
    return "\n".join(parts)


def section(title: str, cls: type[Any]) -> str:
    """A class: what it says of itself, and a table of its fields."""
    helps, hints = field_helps(cls), typing.get_type_hints(cls, localns={"ProcessGroup": ProcessGroup})
    rows = [(f"`{f.name}`", type_name(hints[f.name]), default(f), helps[f.name]) for f in fields(cls) if f.init]
    return "\n".join([title, "", described(cls), "", *table(("name", "type", "default", ""), rows), ""])


def rules(*classes: type[Any]) -> str:
    """Small classes: how each is called, and what it says of itself."""
    rows = []
    for cls in classes:
        arguments = (f.name if f.default is MISSING else f"{f.name}={shown(f.default)}" for f in fields(cls))
        rows.append((f"`{cls.__name__}({', '.join(arguments)})`", " ".join(described(cls).split())))
    return "\n".join([*table(("rule", ""), rows), ""])


def settings_table() -> str:
    hints = typing.get_type_hints(Settings)
    rows = []
    for each in fields(Settings):
        choices = each.metadata.get("choices")
        kind = " or ".join(f"`{choice}`" for choice in choices) if choices else type_name(hints[each.name])
        rows.append((f"`{each.name}`", kind, default(each), each.metadata["help"]))
    return "\n".join([*table(("name", "value", "default", ""), rows), ""])


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    cells = [header, ("---",) * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]


def described(cls: type[Any]) -> str:
    """The docstring as Markdown, without its examples."""
    text = inspect.cleandoc(cls.__doc__ or "").partition(">>>")[0].strip()
    return "\n\n".join(textwrap.fill(as_markdown(" ".join(part.split())), 120) for part in text.split("\n\n"))


def as_markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", lambda m: f"`{m[1].removeprefix('pcn.config.')}`", text)
    return text.replace("``", "`")


def field_helps(cls: type[Any]) -> dict[str, str]:
    """What is said of each field: the comment beside or above it, or else the part of the docstring that names it."""
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found_in = [token for token in tokens if token.type == tokenize.COMMENT]
    comments = {token.start[0]: token.string.lstrip("# ") for token in found_in}
    alone = {token.start[0] for token in found_in if token.line.lstrip().startswith("#")}
    found = {}
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)).body
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first = node.lineno - 1 if node.lineno - 1 in alone else node.lineno
            beside = [comments[n] for n in range(first, (node.end_lineno or node.lineno) + 1) if n in comments]
            name = node.target.id
            found[name] = " ".join(beside) or BESIDE.get((cls.__name__, name)) or mentioned(name, cls.__doc__ or "")
    return found


def mentioned(name: str, docstring: str) -> str:
    text = " ".join(docstring.partition(">>>")[0].split())
    clauses = [clause.rstrip(".;") for clause in re.split(r"(?<=[.;])\s+", text) if f"``{name}``" in clause]
    return as_markdown("; ".join(re.sub(rf"^``{name}``( is| are)? ", "", clause) for clause in clauses))


def type_name(hint: Any) -> str:
    """A type in words.

    >>> type_name(int | float | None)
    'int, float or None'
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        *most, last = dict.fromkeys(type_name(argument) for argument in arguments)
        return f"{', '.join(most)} or {last}" if most else last
    if origin is typing.Literal:
        return " or ".join(f'`"{argument}"`' for argument in arguments)
    if origin is tuple:
        inner = [type_name(argument) for argument in arguments if argument is not Ellipsis]
        return f"{'several' if Ellipsis in arguments else len(inner)} of {inner[0]}"
    if origin in (dict, Mapping):
        return f"mapping from {type_name(arguments[0])} to {type_name(arguments[1])}"
    if origin is Callable:
        return "function"
    if hint is type(None):
        return "None"
    if hint is Any:
        return "any value"
    name = hint.__name__
    return {"RankRule": "rank rule", "SwitchRule": "rule", "Worth": "see below", "object": "any object"}.get(name, name)


def shown(value: Any) -> str:
    return value.__name__ if inspect.isfunction(value) else repr(value)


def default(each: Field[Any]) -> str:
    if each.default is not MISSING:
        return f"`{shown(each.default)}`"
    if each.default_factory is MISSING:
        return "required"
    made_by_name = is_dataclass(each.default_factory)
    return f"`{each.default_factory.__name__}()`" if made_by_name else f"`{each.default_factory()!r}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
