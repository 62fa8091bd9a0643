"""Networks that run at every rate of a small grid on a seed of its own, and on other seeds at the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grouping import Record

GRID_SEED = 100


def find(records: Sequence[Record], network: str, seed: int, rate: float) -> Record | None:
    wanted = network, seed, rate
    return next((r for r in records if (r["network"], r["seed"], r["learning_rate"]) == wanted), None)


def best_rate(
    records: Sequence[Record], network: str, rates: Sequence[float], number: str, best: Callable[..., float] = max
) -> float:
    """The rate of the grid with the best ``number``, the first of those that are equal; each of them must have run.

    >>> runs = [{"network": "wide", "seed": GRID_SEED, "learning_rate": rate, "loss": rate**2} for rate in (0.1, 0.2)]
    >>> best_rate(runs, "wide", (0.1, 0.2), "loss", best=min)
    0.1
    """
    found = {r["learning_rate"]: r[number] for r in records if (r["network"], r["seed"]) == (network, GRID_SEED)}
    return best(rates, key=found.__getitem__)
