"""Printed tables: rows as lines of one width, and remarks with the names that they hold for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def align(rows: Sequence[tuple[str, ...]], texts: Collection[int]) -> list[str]:
    """Rows as lines of one width; the columns of these numbers are texts, the others hold numbers.

    >>> align([("layer", "width"), ("fc1", "64")], texts=(0,))
    ['layer  width', 'fc1       64']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = [
            cell.ljust(width) if index in texts else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def by_text(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Each text once, with the names that it holds for.

    >>> by_text({"fc1": "frozen", "fc2": "frozen"})
    {'frozen': ['fc1', 'fc2']}
    """
    found: dict[str, list[str]] = {}
    for name, text in texts.items():
        found.setdefault(text, []).append(name)
    return found


def listed(title: str, found: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for each text, with the first few of the names that it holds for, below a title; none without texts."""
    lines = [f"  {shorten(names)}: {text}" for text, names in found.items()]
    return ["", title, *lines] if lines else []


def shorten(names: Sequence[str], most: int = 4) -> str:
    """The first few of some names, and how many more there are.

    >>> shorten(["fc1", "fc2", "fc3"], most=2)
    'fc1, fc2 and 1 more'
    """
    first = ", ".join(name or "the model itself" for name in names[:most])
    return f"{first} and {len(names) - most} more" if len(names) > most else first
