"""Worth by response while a budget is tight, and evenly where most of the response is kept anyway."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from pcn.errors import ConfigError
from pcn.planner.evenly import Evenly
from pcn.planner.values import Values
from pcn.statistics import Statistics


@dataclass(frozen=True)
class Hedged:
    """The response that a layer's directions keep, and beside it what an even share of the whole model is worth.

    Early in training the response says what layers need now, and not what they will need. Directions that carry much of
    it come first; what a budget has left when most of it is kept goes to all layers alike. Over all layers, whole, the
    even part is worth ``evenly`` times the responses.
    """

    evenly: float = 0.5
    needs_batches: ClassVar[bool] = False
    by_size: ClassVar[bool] = True
    beside_response: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = self.evenly
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
            raise ConfigError(
                f"Hedged(evenly={given!r}): give a number above 0, such as 0.5; Response() and Evenly() are its ends"
            )

    def __call__(self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]) -> Values:
        even = Evenly()(model, stats, layers, batches)
        total = sum(float(worth[-1]) for worth in even.values())
        return {name: (self.evenly * len(layers) / total) * worth for name, worth in even.items()}
