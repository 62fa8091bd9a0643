"""How long a run will take, by what others have taken."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from peers.order import Run


class Pace:
    """Seconds per epoch of runs that have ended, by parent and method."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def learn(self, run: Run, epochs: int, seconds: float) -> None:
        """Know what a run has taken for so many epochs, from its start to its end."""
        if epochs > 0:
            self.known[run.parent][run.method].append(seconds / epochs)

    def seconds(self, run: Run, epochs: int) -> float:
        """What a run may take for so many epochs: as others of its method, or of its parent; 0 where none is known."""
        of_parent = self.known[run.parent]
        known = of_parent.get(run.method) or [each for runs in of_parent.values() for each in runs]
        return epochs * fmean(known) if known else 0.0
