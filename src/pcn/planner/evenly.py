"""Worth without a look at the data: every layer trains about the same share of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pcn.layers import canonical_weight, groups_of
from pcn.planner.values import Values
from pcn.statistics import Statistics

SPARE = 2  # directions for each that a layer can tell apart: which they will be is not known yet
STEEP = 1000.0  # a layer that has a thousandth or less of its directions is as urgent as can be


@dataclass(frozen=True)
class Evenly:
    """A layer of p weights that trains as much as the share s of its directions is worth p log(1 + 1000 s).

    A little more of any layer is then worth as much for its price as of any other with the same share, and the less
    the larger that is: whoever has least is served next. No more directions count than twice as many as a layer can
    tell apart, which is its outputs times its taps, nor than samples have shown, and no more weights than it needs for
    these. Where directions are read in patterns of taps they cost less, and a layer gets as many more of them. Which of
    the forms that cost as much a layer has goes by its response, and which directions it keeps is its basis's.
    """

    needs_batches: ClassVar[bool] = False
    by_size: ClassVar[bool] = True

    def __call__(self, model: nn.Module, stats: Statistics, layers: Sequence[str], batches: Iterable[Any]) -> Values:
        return {
            name: _worth(model.get_submodule(name), stats.spectrum(name).width, stats.shown(name)) for name in layers
        }


def _worth(layer: nn.Module, width: int, shown: int) -> Tensor:
    weight = canonical_weight(layer)
    # Directions beyond those that samples have shown would be made up.
    useful = min(width, max(1, shown), SPARE * weight.numel() // (groups_of(layer) * width))
    share = torch.arange(width + 1, dtype=torch.float64).clamp_max(useful) / useful
    return weight.numel() * useful / width * (STEEP * share).log1p()
