"""The forms that a layer could have, what each costs and is worth, and those among them that are good bargains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from pcn.planner.prices import Prices
from pcn.planner.units import UNITS, Costs
from pcn.plans.layer_plan import LayerPlan

Price = Callable[["Option"], float]
ROUNDING = 1e-9  # of a number of steps that is worked out from a share
POINTS = 16  # ranks at which the share of outputs is worked out, an eigenproblem each


@dataclass(frozen=True)
class Option:
    """One form of a layer: ranks (None: that side stays), what it costs in every unit of the budget, and its worth.

    Its directions are read in ``kernel_rank`` patterns of taps, on average, or by every tap (None).
    """

    rank: int | None
    output_rank: int | None
    costs: Costs
    worth: float = 0.0
    kernel_rank: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it is the layer as it is."""
        return self.rank is None and self.output_rank is None


def forms(
    layer: LayerPlan,
    step: int,
    prices: Prices,
    *,
    two_sided: bool,
    only_smaller: bool,
    allow_costlier: bool,
    patterns: Sequence[int | None],
    floor: float = 0.0,
) -> Iterator[Option]:
    """Yield the layer as it is, and its forms in steps of rank; with ``only_smaller`` none that is larger or slower.

    Each that reads directions is on offer with all these numbers of ``patterns``; those of a layer that is
    ``two_sided`` train all outputs or fewer, and may read all inputs.

    A form that takes more time, or memory, than the layer takes now, where that was measured for a budget of it, is one
    only with ``allow_costlier``. Every form keeps a share of its directions of at least the ``floor``, on either side.
    A layer that has lost inputs always reads what is left along directions, which can stand for some of the lost.
    """
    before = prices.before(layer)
    whole = layer.kept_inputs == layer.in_features
    if whole:
        yield Option(None, None, prices.after(replace(layer, rank=None, output_rank=None, kernel_rank=None)))
    width, outputs = layer.kept_inputs // layer.groups, layer.kept_outputs // layer.groups
    ranks = multiples(step, width, floor * width)
    fewer = steps_of_outputs(step, outputs, floor) if two_sided else ()
    alone = [(None, trained, None) for trained in fewer] if whole else []
    for rank, trained, read in (*product(ranks, (None, *fewer), patterns), *alone):
        if whole and rank == width and trained is not None and read is None:
            continue  # reading its inputs as they are does the same for less
        planned = replace(layer, rank=rank, output_rank=trained, kernel_rank=read)
        if only_smaller and (planned.is_slower or planned.is_larger):
            continue
        costs = prices.after(planned)
        if allow_costlier or not any(UNITS[unit].measured and costs[unit] > before[unit] for unit in costs):
            yield Option(rank, trained, costs, kernel_rank=read)


def multiples(step: int, most: int, least: float = 0.0) -> Sequence[int]:
    """The multiples of a step up to the most that there can be, from the least on; the most alone where none is there.

    >>> list(multiples(8, 30)), list(multiples(8, 5)), list(multiples(8, 0)), list(multiples(8, 30, 9.5))
    ([8, 16, 24], [5], [], [16, 24])
    >>> multiples(1, 100, 0.55 * 100)[0]
    55
    """
    first = max(1, math.ceil(least / step - ROUNDING)) * step
    return range(first, most + 1, step) or ((most,) if most else ())


def steps_of_outputs(step: int, outputs: int, floor: float = 0.0) -> Sequence[int]:
    """Numbers of trained outputs: multiples of a step, fewer than there are, and at least this share of them.

    >>> list(steps_of_outputs(8, 24)), list(steps_of_outputs(8, 8)), list(steps_of_outputs(8, 30, 0.5))
    ([8, 16], [], [16, 24])
    """
    return range(max(1, math.ceil(floor * outputs / step - ROUNDING)) * step, outputs, step)


def output_shares(weight: Tensor, variances: Tensor, vectors: Tensor, step: int) -> Tensor:
    """Return (ranks + 1, outputs + 1): of the response through r directions, the share that s output directions keep.

    ``weight`` is (g, n, w, k). It is worked out at some multiples of ``step``, close together at low ranks; ranks
    between hold what the next below does.
    """
    projected = torch.einsum("gnmk,gmr->gnrk", weight, vectors)
    groups, outputs, ranks, _ = projected.shape
    shares = torch.ones(ranks + 1, outputs + 1, dtype=torch.float64)
    covariance = torch.zeros(groups, outputs, outputs).to(projected)
    last = max(1, -(-ranks // step))
    looked_at = {round(last ** (point / (POINTS - 1))) for point in range(POINTS)}
    for number, start in enumerate(range(0, ranks, step), 1):
        part, spread = projected[:, :, start : start + step], variances[:, start : start + step]
        covariance = covariance + torch.einsum("gnrk,gr,glrk->gnl", part, spread, part)
        if number not in looked_at:
            continue
        held = torch.linalg.eigvalsh(covariance).flip(-1).clamp_min(0).sum(0).cumsum(0)
        shares[min(start + step, ranks) :, 1:] = (held / held[-1].clamp_min(torch.finfo(held.dtype).tiny)).cpu()
    return shares


def bargains(options: Sequence[Option], price: Price) -> list[Option]:
    """Return the options that no mixture of others beats, cheapest first: each step buys less per price than the last.

    >>> plain = [Option(r, None, {"params": r}, w) for r, w in ((1, 0.1), (2, 0.15), (3, 0.6), (4, 0.7))]
    >>> [option.rank for option in bargains(plain, lambda option: option.costs["params"])]
    [1, 3, 4]
    """
    hull: list[Option] = []
    for option in sorted(options, key=lambda o: (price(o), -o.worth)):
        if hull and option.worth <= hull[-1].worth:
            continue
        while len(hull) > 1 and rate(hull[-1], option, price) >= rate(hull[-2], hull[-1], price):
            hull.pop()
        hull.append(option)
    return hull


def rate(low: Option, high: Option, price: Price) -> float:
    """What going from one option to another buys per price."""
    return (high.worth - low.worth) / max(price(high) - price(low), 1e-12)
