"""A spectrum as a small picture in a table: the logarithm of the variance over the directions."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDTH, HEIGHT = 120, 28  # pixels
MARGIN = 2
DECADES = 6  # below a millionth of the largest variance nothing is told apart


def sparkline(values: Sequence[float], kept: int | None) -> str:
    """Return a line as SVG, with the kept directions shaded; the colours are those of the text around it.

    >>> sparkline([1.0, 0.1], kept=1).count("<svg")
    1
    """
    positive = [value for value in values if value > 0]
    if not positive:
        return ""
    step = WIDTH / len(values)
    span = min(DECADES, max(1.0, -math.log10(positive[-1] / positive[0])))
    heights = [_height(value / positive[0], span) for value in values]
    line = " ".join(f"{(i + 0.5) * step:.1f},{y:.1f}" for i, y in enumerate(heights))
    line = f"0,{heights[0]:.1f} {line} {WIDTH},{heights[-1]:.1f}"  # one direction alone is seen too
    shaded = ""
    if kept is not None:
        edge = step * min(kept, len(values))
        shaded = f'<rect width="{edge:.1f}" height="{HEIGHT}" fill="currentColor" opacity="0.15"/>'
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="spectrum" style="vertical-align:middle">'
        f'{shaded}<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.4"/></svg>'
    )


def _height(relative: float, span: float) -> float:
    """Where a variance stands, relative to the largest: at the top for 1, at the bottom below the span of decades."""
    decades = span if relative <= 0 else min(span, -math.log10(relative))
    return MARGIN + (HEIGHT - 2 * MARGIN) * decades / span
