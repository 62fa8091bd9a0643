"""Printing statistics: which layers are wider than what they read, and what that would save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcn.config import USUAL_RANK
from pcn.errors import StatisticsError
from pcn.rank_rules import Rank, RankRule, as_rank_rule
from pcn.tables import align, by_text, listed

if TYPE_CHECKING:
    from pcn.statistics.statistics import Statistics

HEADER = ("layer", "width", "directions", "trainable", "would save", "")
TEXTS = (0, 5)  # the columns that are texts


@dataclass(frozen=True)
class Row:
    """What a rank rule finds in the input of one layer."""

    layer: str
    width: int  # of one group
    groups: int
    directions: int | None
    trainable: int
    saved: int  # trained parameters fewer, 0 where the layer would be left alone
    reason: str | None = None  # why the number of directions is not known

    @property
    def width_shown(self) -> str:
        return f"{self.groups} x {self.width:,}" if self.groups > 1 else f"{self.width:,}"

    def cells(self, most: int) -> tuple[str, ...]:
        directions = "?" if self.directions is None else f"{self.directions:,}"
        mark = "  <- most" if self.saved == most > 0 else ""
        share = f"{_share(self.saved, self.trainable):>4}{mark}"
        return self.layer, self.width_shown, directions, f"{self.trainable:,}", f"{self.saved:,}", share


def table(statistics: Statistics, rank: Rank | None = None) -> str:
    """Return one line for each layer in the order of the model, their sum, and the reasons of what is left alone."""
    rule = rule_shown(rank)
    found = rows(statistics, rule)
    most = max(row.saved for row in found)
    trainable, saved = sum(row.trainable for row in found), sum(row.saved for row in found)
    total = ("all", "", "", f"{trainable:,}", f"{saved:,}", f"{_share(saved, trainable):>4}")
    return "\n".join(
        [
            f"directions by {rule}",
            "",
            *align([HEADER, *(row.cells(most) for row in found), total], TEXTS),
            *listed("not known:", by_text(not_known(found))),
            *listed("remarks:", by_text(statistics.remarks)),
            *listed("left alone:", by_text(statistics.left_alone)),
        ]
    )


def rule_shown(rank: Rank | None) -> RankRule:
    """The rule that was asked for, by default that of ``PCNConfig()``."""
    return USUAL_RANK if rank is None else as_rank_rule(rank)


def rows(statistics: Statistics, rule: RankRule) -> list[Row]:
    """One row for each layer, in the order of the model."""
    return [_row(statistics, name, rule) for name in statistics.layers]


def not_known(rows: list[Row]) -> dict[str, str]:
    """Why the number of directions is not known, by layer, where it is not."""
    return {row.layer: row.reason for row in rows if row.reason is not None}


def _row(statistics: Statistics, name: str, rule: RankRule) -> Row:
    shape = statistics.shapes[name]
    width = shape.inputs // shape.groups
    try:
        directions = max(1, min(width, rule.rank(statistics.spectrum(name))))
    except StatisticsError as error:
        return Row(name, width, shape.groups, None, shape.trainable, 0, str(error).removeprefix(f"{name!r}: "))
    # With its basis the layer may be larger than before, and is then left alone by default.
    trainable = shape.trainable_with(directions, centred=not statistics.moments[statistics.layers[name]].from_zero)
    grows = trainable + shape.inputs * (directions + 1) >= shape.trainable
    saved = 0 if grows else shape.trainable - trainable
    return Row(name, width, shape.groups, directions, shape.trainable, saved)


def _share(saved: int, trainable: int) -> str:
    return f"{saved / trainable:.0%}" if saved else ""
