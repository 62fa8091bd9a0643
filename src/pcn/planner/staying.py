"""Why layers keep all of their outputs where a budget may drop some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from pcn.planner.items import Items

WORTH_MORE = "each is worth more than the ranks that its price would buy"
NO_USE = "no layer would get more rank for what they take"
OTHERS_FIRST = "channels of other layers are worth less for their price"
RANKS_ALONE = "ranks alone are worth more than with the least of them gone"


def why_outputs_stay(items: Items, dropped: Tensor | None, stuck: Mapping[int, str], tried: bool) -> dict[str, str]:
    """Give the reason of every layer that loses no outputs.

    ``stuck`` are the classes that the model's code does not let go, and ``tried`` says whether some could go at all,
    in steps of the budget.
    """
    return dict(_reasons(items, dropped, {**items.blocked, **stuck}, tried))


def _reasons(
    items: Items, dropped: Tensor | None, blocked: Mapping[int, str], tried: bool
) -> Iterator[tuple[str, str]]:
    cheap = set(items.cheap.tolist())
    for name, classes in items.wiring.outputs.items():
        own = classes.unique().tolist()
        free = [cls for cls in own if cls not in blocked]
        if dropped is not None and dropped[classes].any():
            continue
        if not free:
            yield name, blocked[own[0]]
        elif cheap.isdisjoint(free):
            yield name, WORTH_MORE if items.next_rate > 0 else NO_USE
        elif dropped is not None:
            yield name, OTHERS_FIRST
        else:
            step = items.question.budget.step
            yield name, RANKS_ALONE if tried else f"none could go in steps of {step} that are worth less than ranks"
