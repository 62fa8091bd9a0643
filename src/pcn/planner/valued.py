"""What the forms of a layer are worth, by what its directions are, its trained outputs and its patterns of taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pcn.planner.options import Option, Price

WHOLE = 1e-9  # by so much a whole layer is worth more than all its directions


@dataclass(frozen=True)
class Value:
    """What there is to know of a layer: ``worth[r]`` is what r directions are worth.

    Of that, s trained outputs keep the share ``outputs[r, s]``. ``patterns[r, q]`` is the share of the layer's response
    that r directions keep in q patterns of taps, the last of them in every tap. Where worth goes by ``size``, size[r]
    is what a layer is worth that trains as much as r directions do, and ``worth`` says which form is the best of those
    that cost as much; it counts itself only where size is ``beside`` it.
    """

    worth: Tensor
    outputs: Tensor | None = None
    patterns: Tensor | None = None
    size: Tensor | None = None
    beside: bool = False

    def of(self, options: Sequence[Option], price: Price, left: Tensor | None = None) -> list[Option]:
        """The options with their worth; ``left[r]`` is the share of r directions' without inputs that are gone."""
        valued = [replace(option, worth=self._worth(option) * _share(left, option)) for option in options]
        if self.size is None:
            return valued
        return [
            replace(option, worth=option.worth * self.beside + self._by_size(option) * _share(left, option))
            for option in best(valued, price)
        ]

    def _worth(self, option: Option) -> float:
        if option.whole:
            return _whole(self.worth)
        kept, rank = 1.0, _rank(option, self.worth)
        if self.outputs is not None and option.output_rank is not None:
            kept *= float(self.outputs[min(rank, len(self.outputs) - 1), option.output_rank])
        if self.patterns is not None and option.kernel_rank is not None:
            row = self.patterns[min(rank, len(self.patterns) - 1)]
            kept *= float(row[option.kernel_rank] / row[-1].clamp_min(torch.finfo(row.dtype).tiny))
        return float(self.worth[rank]) * kept

    def _by_size(self, option: Option) -> float:
        """What as many directions are worth as train so much, between two of them in proportion."""
        assert self.size is not None
        if option.whole:
            return _whole(self.size)
        directions = float(_rank(option, self.size))
        if self.outputs is not None and option.output_rank is not None:
            directions *= option.output_rank / (self.outputs.shape[1] - 1)
        if self.patterns is not None and option.kernel_rank is not None:
            directions *= option.kernel_rank / (self.patterns.shape[1] - 1)
        below = int(directions)
        above = min(below + 1, len(self.size) - 1)
        return float(self.size[below] + (directions - below) * (self.size[above] - self.size[below]))


def best(options: Sequence[Option], price: Price) -> list[Option]:
    """Return the options, cheapest first, without those that are worth less than one of no higher price.

    >>> found = [Option(rank, None, {"params": cost}, worth) for rank, cost, worth in ((8, 2, 0.5), (16, 1, 0.6))]
    >>> [option.rank for option in best(found, lambda option: option.costs["params"])]
    [16]
    """
    found: list[Option] = []
    for option in sorted(options, key=lambda option: (price(option), -option.worth)):
        if not found or option.worth >= found[-1].worth:
            found.append(option)
    return found


def _rank(option: Option, worth: Tensor) -> int:
    """How many directions a form reads: all of them, where it reads its inputs as they are."""
    return len(worth) - 1 if option.rank is None else option.rank


def _whole(worth: Tensor) -> float:
    """Where there is room for all of a layer it stays: directions that no sample showed may matter yet."""
    return float(worth[-1]) * (1 + WHOLE) + 1e-12


def _share(left: Tensor | None, option: Option) -> float:
    return 1.0 if left is None or option.rank is None else float(left[min(option.rank, len(left) - 1)])
