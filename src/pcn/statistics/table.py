"""Printing statistics: which layers are wider than what they read, and what that would save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcn.config import PCNConfig, Rank, RankRule, as_rank_rule
from pcn.errors import StatisticsError

if TYPE_CHECKING:
    from pcn.statistics.statistics import Statistics

HEADER = ("layer", "width", "directions", "trainable", "would save", "")


@dataclass(frozen=True)
class _Row:
    layer: str
    width: str
    directions: str
    trainable: int
    saved: int
    reason: str | None = None  # why the number of directions is not known

    def cells(self, most: int) -> tuple[str, ...]:
        share = f"{self.saved / self.trainable:.0%}" if self.saved else ""
        mark = "  <- most" if self.saved == most > 0 else ""
        return self.layer, self.width, self.directions, f"{self.trainable:,}", f"{self.saved:,}", f"{share:>4}{mark}"


def table(statistics: Statistics, rank: Rank | None = None) -> str:
    """Return one line for each layer in the order of the model, their sum, and the reasons of what is left alone."""
    rule = as_rank_rule(PCNConfig().rank or 1.0) if rank is None else as_rank_rule(rank)
    rows = [_row(statistics, name, rule) for name in statistics.layers]
    most = max(row.saved for row in rows)
    total = _Row("all", "", "", sum(row.trainable for row in rows), sum(row.saved for row in rows))
    lines = _aligned([HEADER, *(row.cells(most) for row in rows), total.cells(most=0)])
    reasons = [(row.layer, row.reason) for row in rows if row.reason is not None]
    return "\n".join(
        [
            f"directions by {rule}",
            "",
            *lines,
            *_listed("not known:", reasons),
            *_listed("left alone:", list(statistics.left_alone.items())),
        ]
    )


def _row(statistics: Statistics, name: str, rule: RankRule) -> _Row:
    shape = statistics.shapes[name]
    width = shape.inputs // shape.groups
    shown = f"{shape.groups} x {width:,}" if shape.groups > 1 else f"{width:,}"
    try:
        directions = max(1, min(width, rule.rank(statistics.spectrum(name))))
    except StatisticsError as error:
        return _Row(name, shown, "?", shape.trainable, 0, str(error).removeprefix(f"{name!r}: "))
    # With its basis the layer may be larger than before, and is then left alone by default.
    grows = shape.trainable_with(directions) + shape.inputs * (directions + 1) >= shape.trainable
    saved = 0 if grows else shape.trainable - shape.trainable_with(directions)
    return _Row(name, shown, f"{directions:,}", shape.trainable, saved)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = []
    for first, *numbers, last in rows:
        middle = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
        texts.append("  ".join([first.ljust(widths[0]), *middle, last]).rstrip())
    return texts


def _listed(title: str, reasons: list[tuple[str, str]], most: int = 4) -> list[str]:
    """One line for each reason, with the first few of the names that it holds for."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name or "(the model)")
    lines = []
    for reason, held in names.items():
        more = f" and {len(held) - most} more" if len(held) > most else ""
        lines.append(f"  {', '.join(held[:most])}{more}: {reason}")
    return ["", title, *lines] if lines else []
