"""What a budget can limit, and how amounts of it are counted and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcn.costs.usage import MIB, MS

Costs = Mapping[str, int]  # unit -> amount, in whole numbers of the smallest part: sums are exact


@dataclass(frozen=True)
class Unit:
    """One thing that a budget limits: what a person calls it, how many counted parts (ns, bytes) make one, of what."""

    called: str
    parts: int = 1
    of: str = ""

    @property
    def measured(self) -> bool:
        """Whether the model has to run on its device to know the cost."""
        return self.parts > 1

    def shown(self, amount: int) -> str:
        """An amount in words.

        >>> Unit("parameters").shown(1234), Unit("ms", 1_000_000).shown(1_234_567)
        ('1,234 parameters', '1.235 ms')
        """
        return f"{amount:,} {self.called}" if self.parts == 1 else f"{amount / self.parts:,.3f} {self.called}"

    def at_least(self, amount: int, now: int | None) -> str:
        """The same as a limit that can be given, and as a fraction of what is taken now, if known; both rounded up.

        >>> Unit("ms", 1_000_000).at_least(1_234_567, 5_000_000), Unit("parameters").at_least(1001, 10_000)
        ('1.235 ms (24.7% of now)', '1,001 parameters (10.1% of now)')
        """
        counted = amount if self.parts == 1 else -(-1000 * amount // self.parts) * self.parts // 1000
        share = "" if not now else f" ({-(-1000 * amount // now) / 10:.1f}% of now)"
        return self.shown(counted) + share


UNITS = {  # by the name of the budget's field
    "params": Unit("parameters"),
    "flops": Unit("FLOPs"),
    "step_ms": Unit("ms", MS, "time"),
    "memory_mib": Unit("MiB", MIB, "memory"),
    "stored": Unit("stored numbers"),
}
MEASURED = tuple(name for name, unit in UNITS.items() if unit.measured)


def costlier(costs: Costs, now: Costs) -> list[str]:
    """The measured things of which more is taken than now.

    >>> costlier({"params": 2, "step_ms": 3, "memory_mib": 4}, {"params": 1, "step_ms": 3, "memory_mib": 1})
    ['memory_mib']
    """
    return [unit for unit in MEASURED if costs.get(unit, 0) > now.get(unit, 0)]


def amounts(costs: Costs) -> str:
    """Several amounts in words.

    >>> amounts({"params": 1200, "flops": 30})
    '1,200 parameters and 30 FLOPs'
    """
    return " and ".join(UNITS[unit].shown(amount) for unit, amount in costs.items())
