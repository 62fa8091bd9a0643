"""Figures for papers: matplotlib without its global state."""

from __future__ import annotations

import importlib
import io
from typing import TYPE_CHECKING, Any

from pcn.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#1f5f99", "#d95f02", "#c9ced6"  # told apart in print and by the colour-blind
SMALL = 7  # points


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of so many inches, which shows itself in a notebook and is saved with ``savefig``."""
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigError("plots are drawn with matplotlib, which is not installed: pip install matplotlib") from error

    class Shown(figures.Figure):  # type: ignore[misc]
        """Shows itself in a notebook, whether pyplot was imported there or not."""

        def _repr_png_(self) -> bytes:
            held = io.BytesIO()
            self.savefig(held, format="png", dpi=150, bbox_inches="tight", facecolor="white")
            return held.getvalue()

    made: Figure = Shown(figsize=(width, height), layout="constrained")
    return made


def plain(text: str) -> str:
    """A layer's name as it is: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")
