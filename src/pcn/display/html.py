"""Statistics and plans as HTML for notebooks: one table, nothing from outside, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from pcn.display.sparkline import sparkline
from pcn.display.spectra import eigenvalues
from pcn.plans.table import HEADER as PLAN_HEADER
from pcn.plans.table import cells, reasons, remarks, totals
from pcn.rank_rules import Rank
from pcn.statistics.table import Row, not_known, rows, rule_shown
from pcn.tables import by_text, shorten

if TYPE_CHECKING:
    from pcn.plans.layer_plan import LayerPlan
    from pcn.plans.plan import Plan
    from pcn.statistics import Statistics

# Colours come from the text's own, so that the same table suits light and dark notebooks.
TABLE = "border-collapse:collapse;margin:0.4em 0;font-variant-numeric:tabular-nums"
CELL = "padding:0.2em 0.8em;border:0;border-bottom:1px solid rgba(128,128,128,0.3);white-space:nowrap;background:none"
QUIET = "opacity:0.75;margin:0.2em 0"


def statistics_html(statistics: Statistics, rank: Rank | None = None) -> str:
    """Return which layers are too wide, each with its spectrum, for a rank rule."""
    rule = rule_shown(rank)
    found = rows(statistics, rule)
    trainable, saved = sum(row.trainable for row in found), sum(row.saved for row in found)
    body = [_statistics_row(statistics, row) for row in found]
    body.append(_tr(["all", "", "", "", f"{trainable:,}", f"{saved:,} ({saved / max(trainable, 1):.0%})"], "td"))
    header = _tr(["layer", "width", "directions", "spectrum", "trainable", "would save"], "th")
    lists = {"not known": not_known(found), "remarks": statistics.remarks, "left alone": statistics.left_alone}
    return _page([f"directions by {rule}"], header, body, [(title, by_text(texts)) for title, texts in lists.items()])


def plan_html(plan: Plan) -> str:
    """Return what every layer keeps, what that saves, and the reasons of what is left alone."""
    body = [_plan_row(layer) for layer in plan.layers.values() if layer.changed]
    header = _tr([*PLAN_HEADER[:2], "kept", *PLAN_HEADER[2:]], "th")
    return _page(
        totals(plan) if body else ["nothing changes"],
        header if body else "",
        body,
        [("remarks", remarks(plan)), ("left alone", reasons(plan))],
    )


def _statistics_row(statistics: Statistics, row: Row) -> str:
    directions = "?" if row.directions is None else f"{row.directions:,}"
    picture = sparkline(eigenvalues(statistics, row.layer), row.directions)
    saved = f"{row.saved:,} ({row.saved / row.trainable:.0%})" if row.saved else "0"
    texts = [row.layer, row.width_shown, directions, "", f"{row.trainable:,}", saved]
    return _tr(texts, "td", pictures={3: picture})


def _plan_row(layer: LayerPlan) -> str:
    name, inputs, *others = cells(layer)
    return _tr([name, inputs, "", *others], "td", pictures={2: _bar(layer)})


def _bar(layer: LayerPlan) -> str:
    """The share of the input's width that is left, as a bar."""
    share = layer.width_after * layer.groups / layer.in_features
    return (
        '<svg width="80" height="10" role="img" aria-label="kept" style="vertical-align:middle">'
        '<rect width="80" height="10" fill="currentColor" opacity="0.15"/>'
        f'<rect width="{max(1.0, 80 * min(1.0, share)):.1f}" height="10" fill="currentColor" opacity="0.7"/></svg>'
    )


def _page(
    titles: list[str], header: str, body: Iterable[str], lists: Iterable[tuple[str, dict[str, list[str]]]]
) -> str:
    title = "<br>".join(map(escape, titles))
    table = f'<table style="{TABLE}"><thead>{header}</thead><tbody>{"".join(body)}</tbody></table>' if header else ""
    below = "".join(_list(name, found) for name, found in lists if found)
    return f'<div><p style="{QUIET}">{title}</p>{table}{below}</div>'


def _list(title: str, found: dict[str, list[str]]) -> str:
    items = "".join(f"<li>{escape(shorten(names))}: {escape(reason)}</li>" for reason, names in found.items())
    return f'<details style="{QUIET}"><summary>{escape(title)}</summary><ul>{items}</ul></details>'


def _tr(texts: Sequence[str], tag: str, pictures: dict[int, str] | None = None) -> str:
    """One row; pictures are our own markup, everything else is escaped."""
    made = []
    for index, text in enumerate(texts):
        inside = (pictures or {}).get(index) or escape(text)
        made.append(f'<{tag} style="{CELL};text-align:{"left" if index == 0 else "right"}">{inside}</{tag}>')
    return f"<tr>{''.join(made)}</tr>"
