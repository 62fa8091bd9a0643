"""How little a model could take at all: every layer at its lowest rank, which steps of rank may keep high."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pcn.planner.options import Option, multiples, steps_of_outputs
from pcn.planner.prices import Prices, added
from pcn.planner.tap_shares import tried_patterns
from pcn.planner.units import UNITS, Costs
from pcn.planner.values import WIDEST
from pcn.plans.layer_plan import LayerPlan
from pcn.tables import shorten

if TYPE_CHECKING:
    from pcn.planner.budget import Budget

# The planner starts from ranks that fit with all channels, and looks at what channels could go for.
KEPT = (
    "; all channels are kept in this, as drop_channels=True lets them go only from ranks that fit by themselves: "
    "PCNConfig(rank=..., keep_outputs=...), without a budget, may get lower"
)

DROPPED = "PCNConfig(keep_dropped=True) keeps each layer's weight beside what is trained, frozen"


@dataclass(frozen=True)
class Steps:
    """The size of a step of rank, what to ask for instead, and what would come of it.

    ``narrow`` are the layers that have no more inputs than a step, ``nothing_else`` says that there are no others, and
    ``finest`` is the least that the whole model could take in steps of 1, in units that are counted. With ``drops``,
    channels go as well, once ranks alone fit. No layer keeps a smaller share of its directions than the ``floor``.
    ``freed`` is the least, where it is counted, if what is dropped did not stay; None where it does not.
    """

    size: int = 1
    instead: str = ""
    narrow: tuple[str, ...] = ()
    finest: Costs = field(default_factory=dict)
    drops: bool = False
    floor: float = 0.0
    nothing_else: bool = False
    freed: Costs | None = None

    @classmethod
    def of(cls, budget: Budget, layers: Sequence[LayerPlan], prices: Prices, others: Costs) -> Steps:
        """The steps of a budget, for layers beside which everything else takes so much."""
        finest = added(others, least((lowest(layer, budget.finest, prices) for layer in layers), prices.units))
        free = [layer for layer in layers if not budget.config.fixes(layer.name)]
        narrow = [layer.name for layer in free if is_narrow(layer, budget)]
        given = {"Budget(step=1)": budget.step, "PCNConfig(multiple_of=1)": budget.config.multiple_of}
        freed = None
        if budget.config.keep_dropped:
            bare = [replace(layer, keep_dropped=False) for layer in layers]
            freed = _counted(added(others, least((lowest(layer, budget, prices) for layer in bare), prices.units)))
        return cls(
            budget.rank_step,
            " and ".join(ask for ask, size in given.items() if size > 1),
            tuple(narrow),
            _counted(finest),
            budget.drop_channels,
            budget.floor,
            0 < len(narrow) == len(free),
            freed,
        )

    def advice(self, least: Costs, now: Costs) -> str:
        """What to change where this, the least that could be had, is too much; nothing where nothing is known."""
        held = f"; floor={self.floor:g} keeps as much of every layer's directions" if self.floor else ""
        return held + self._without_dropped(least, now) + self._finer(least, now) + (KEPT if self.drops else "")

    def _without_dropped(self, least: Costs, now: Costs) -> str:
        """What would come of it if what is dropped did not stay, frozen: that is no parameter, but all else."""
        if self.freed is None:
            return ""
        lower = {unit: self.freed[unit] for unit in least if self.freed.get(unit, least[unit]) < least[unit]}
        reached = " and ".join(UNITS[unit].at_least(amount, now.get(unit)) for unit, amount in lower.items())
        if lower:
            return f"; {DROPPED}: without it, it would be {reached}"
        return f"; {DROPPED}: without it, it may get lower" if any(UNITS[unit].measured for unit in least) else ""

    def _finer(self, least: Costs, now: Costs) -> str:
        lower = {unit: self.finest[unit] for unit in least if self.finest.get(unit, least[unit]) < least[unit]}
        if self.size == 1 or not (lower or any(UNITS[unit].measured for unit in least)):
            return ""
        held = f", and nothing can be cut of layers of no more inputs ({shorten(list(self.narrow))})"
        reached = " and ".join(UNITS[unit].at_least(amount, now.get(unit)) for unit, amount in lower.items())
        instead = f"with {self.instead} it would be {reached}" if lower else f"{self.instead} may get lower"
        return f"; ranks go in steps of {self.size}{held if self.narrow else ''}: {instead}"


def _counted(costs: Costs) -> Costs:
    """Those that are known without a measurement."""
    return {unit: amount for unit, amount in costs.items() if not UNITS[unit].measured}


def lowest(layer: LayerPlan, budget: Budget, prices: Prices) -> list[Option]:
    """The forms of a layer among which the cheapest is, in any unit or mixture, as each rises with rank.

    A rule of its own may ask for any number, where only statistics tell which.
    """
    if budget.config.fixes(layer.name):
        unknown = budget.config.rule_for(layer.name)[0].needs_statistics
        return [Option(None, None, dict.fromkeys(prices.units, 0) if unknown else prices.after(layer))]
    width = layer.in_features // layer.groups
    planned = replace(layer, rank=multiples(budget.rank_step, width, budget.floor * width)[0])
    fewest = min(each or layer.taps for each in tried_patterns(layer, budget))
    planned = replace(planned, kernel_rank=fewest if fewest < layer.taps else None)
    both = [replace(planned, output_rank=trained) for trained in _fewest_outputs(layer, budget)]
    forms = [planned, *both, *(replace(each, rank=None, kernel_rank=None) for each in both)]
    smaller = [form for form in forms if not (budget.config.skip_larger and (form.is_larger or form.is_slower))]
    found = [Option(f.rank, f.output_rank, prices.after(f), kernel_rank=f.kernel_rank) for f in smaller]
    return [Option(None, None, prices.before(layer)), *found]


def _fewest_outputs(layer: LayerPlan, budget: Budget) -> Sequence[int]:
    """The fewest outputs that a layer could train behind a basis, if it could."""
    if not on_both_sides(layer, budget):
        return ()
    return steps_of_outputs(budget.rank_step, layer.out_features // layer.groups, budget.floor)[:1]


def is_narrow(layer: LayerPlan, budget: Budget) -> bool:
    """Whether a layer has no more inputs than a step of rank, or outputs, so that nothing can be cut of it."""
    narrow = layer.in_features // layer.groups <= budget.rank_step
    return narrow and not _fewest_outputs(layer, budget)


def least(offers: Iterable[Sequence[Option]], units: Iterable[str]) -> Costs:
    """The least that one option of each offer could cost together, counted for each unit by itself."""
    found = list(offers)
    return {unit: sum(min(option.costs[unit] for option in options) for options in found) for unit in units}


def on_both_sides(layer: LayerPlan, budget: Budget) -> bool:
    """Whether a budget chooses how many outputs a layer trains as well: an eigenproblem of their number a step."""
    return budget.two_sided and layer.out_features // layer.groups <= WIDEST
