"""Packages build on one another in one direction: none imports what is built on it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "pcn"
# A plan and statistics have methods that belong to what is built on them, and import it when they are called.
FRONT_DOORS = {
    ("plans", "display"),
    ("plans", "planner"),
    ("plans", "rewriting"),
    ("statistics", "display"),
}


def imports(body: list[ast.stmt], *, inner: bool) -> Iterator[str]:
    """The modules of ours that a file imports: as it is read or, where ``inner``, inside its functions."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        outer = statement if isinstance(statement, ast.Import | ast.ImportFrom) else None
        for node in ast.walk(statement) if inner else [statement]:
            if node is outer and inner:
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"pcn.{each.name}" for each in node.names] if node.module == "pcn" else [node.module]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            else:
                continue
            yield from (name for name in names if name.startswith("pcn."))


def edges(*, inner: bool) -> set[tuple[str, str]]:
    """The packages, or modules that stand alone, and those that each imports."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        here = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for name in imports(ast.parse(file.read_text()).body, inner=inner):
            there = name.split(".")[1]
            if there != here:
                found.add((here, there))
    return found


def test_packages_import_in_one_direction() -> None:
    below: dict[str, set[str]] = {}
    for here, there in edges(inner=False):
        below.setdefault(here, set()).add(there)
    order = list(TopologicalSorter(below).static_order())  # raises where there is a cycle
    assert order.index("layers") < order.index("statistics") < order.index("plans") < order.index("rewriting")
    upward = {(here, there) for here, there in edges(inner=True) if reaches(there, here, below)}
    assert upward == FRONT_DOORS


def reaches(start: str, end: str, below: dict[str, set[str]]) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        new = below.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return end in seen
