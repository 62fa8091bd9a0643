"""The eigenvalues that a picture shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcn.errors import PCNError

if TYPE_CHECKING:
    from pcn.statistics import Statistics

MOST = 256  # directions of one layer that are drawn; a screen shows no more


def eigenvalues(statistics: Statistics, layer: str, most: int = MOST) -> list[float]:
    """The leading variances of a layer's input, averaged over its groups, descending; none where they are not known."""
    try:
        spectrum = statistics.spectrum(layer)
        values, _ = spectrum.leading(min(most, spectrum.width))
    except PCNError:
        return []
    return [float(value) for value in values.mean(0)]
