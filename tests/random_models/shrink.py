"""Making a failing case small: fewer choices, and simpler ones."""

from __future__ import annotations

from collections.abc import Callable


def shrink(fails: Callable[[list[int]], bool], taken: list[int], tries: int = 300) -> list[int]:
    """Return the smallest list of choices found that still fails; 0 is the simplest choice, and what is missing is 0.

    >>> shrink(lambda values: sum(values) > 4, [3, 0, 9, 1, 2])
    [5]
    """
    left = [tries]

    def works(candidate: list[int]) -> bool:
        left[0] -= 1
        return left[0] >= 0 and fails(candidate)

    best = list(taken)
    progress = True
    while progress and left[0] > 0:
        before = list(best)
        for width in (len(best) // 2, 16, 4, 1):
            best = _remove(works, best, max(width, 1))
        best = _lower(works, best)
        progress = best != before
    return best


def _remove(works: Callable[[list[int]], bool], values: list[int], width: int) -> list[int]:
    """Cut off the end, then take runs of choices out."""
    start = len(values) - width
    while start >= 0:
        candidate = values[:start] + values[start + width :]
        if works(candidate):
            values = candidate
        start -= width
    return values


def _lower(works: Callable[[list[int]], bool], values: list[int]) -> list[int]:
    for i in range(len(values)):
        low, high = 0, values[i]
        while low < high:
            middle = (low + high) // 2
            if works([*values[:i], middle, *values[i + 1 :]]):
                high = middle
            else:
                low = middle + 1
        values = [*values[:i], high, *values[i + 1 :]]
    while values and values[-1] == 0:
        values.pop()
    return values
