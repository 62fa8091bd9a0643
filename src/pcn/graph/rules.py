"""The table of operator rules: how each operator carries channels from its inputs to its outputs.

A rule takes the atoms and one call, couples or pins what the operator ties together, and returns what its outputs
carry. An operator without a rule pins everything that it touches: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pcn.graph.atoms import Atoms, Carried

Output = Carried | list[Carried]
Rule = Callable[[Atoms, "Call"], Output]

RULES: dict[str, Rule] = {}
POINTWISE: set[str] = set()  # operators that treat every position alike


@dataclass(frozen=True)
class Call:
    """One operator call: arguments by their schema names (tensors as Carried) and the shapes that came out."""

    op: str
    arguments: dict[str, Any]
    shapes: list[tuple[int, ...]]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        value = self.arguments.get(name, default)
        return default if value is None else value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[0]

    def tensors(self) -> Iterator[Carried]:
        """Yield every tensor argument, those inside lists too."""
        for value in self.arguments.values():
            for item in value if isinstance(value, list | tuple) else [value]:
                if isinstance(item, Carried):
                    yield item

    def numbers(self) -> tuple[float, ...]:
        """The numbers that the operator computes with, as far as they may not be sizes or positions."""
        name = self.op.removesuffix("_")
        kinds = (int, float) if name in POINTWISE or not {name, self.op} & RULES.keys() else (float,)
        return tuple(value for value in self.arguments.values() if isinstance(value, kinds))

    def dims(self, name: str, ndim: int) -> list[int]:
        """Return a dimension argument as a list of non-negative numbers; absent or empty means all."""
        given = self.arguments.get(name)
        if given is None or given == []:
            return list(range(ndim))
        return [d % ndim for d in (given if isinstance(given, list | tuple) else [given])]


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a rule for these operators (``aten.`` names without the overload; in-place twins included)."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return register


def operators(names: str) -> tuple[str, ...]:
    """Return a list of ATen operators written as words.

    >>> operators("add mul")
    ('aten.add', 'aten.mul')
    """
    return tuple(f"aten.{name}" for name in names.split())


def apply_rule(atoms: Atoms, call: Call) -> Output:
    """Carry channels through one call, by its rule or, without one, by pinning all that it reads."""
    name = call.op.removesuffix("_") if call.op.removesuffix("_") in RULES else call.op
    if name in RULES:
        return RULES[name](atoms, call)
    return refuse(atoms, call, f"no rule for the operator {call.op}")


def refuse(atoms: Atoms, call: Call, reason: str) -> Output:
    """Pin everything that a call reads and return outputs of fixed size."""
    for value in call.tensors():
        atoms.pin_all(value, reason)
    return as_output([Carried.fixed(shape) for shape in call.shapes])


def as_output(outputs: list[Carried]) -> Output:
    """What a rule returns: a single output stands by itself."""
    return outputs[0] if len(outputs) == 1 else outputs
