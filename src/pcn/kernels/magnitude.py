"""Numbers of rows, coarsely: what is remembered of a kernel on some rows serves numbers that are near."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

LARGEST = 20  # magnitude: 4^20 rows fit on no device
ANYWHERE = 1.5  # magnitudes that what was timed on an unknown number of rows counts as away from all


def magnitude(rows: int) -> int:
    """The number of rows as a power of four; around a power of two it does not change.

    Of the usual batches, 128 and 1024 never share one, and a somewhat smaller last batch is not apart.

    >>> [magnitude(rows) for rows in (8192, 60_000, 65536, 131072, 2**20)]
    [6, 8, 8, 8, 10]
    """
    return min(round(math.log2(max(rows, 1))) // 2, LARGEST)


def at_rows(key: str, rows: int) -> str:
    """What a kernel is remembered by on about so many rows.

    >>> at_rows("moments 64", 60_000)
    'moments 64 on about 65536 rows'
    """
    return key + _ending(magnitude(rows))


def nearest(key: str, rows: int) -> Iterator[str]:
    """What a kernel may be remembered by, the nearest number of rows first; without one it stands for any.

    >>> list(nearest("moments 64", 65536))[:4]
    ['moments 64 on about 65536 rows', 'moments 64 on about 262144 rows', 'moments 64 on about 16384 rows',
     'moments 64']
    """
    return (key + ending for ending in _endings(magnitude(rows)))


def _ending(of: int) -> str:
    return f" on about {4**of} rows"


@cache  # kernels are launched often
def _endings(of: int) -> tuple[str, ...]:
    """From the nearest to the farthest; of two that are equally far, that of more rows: they take more time."""
    away = {_ending(other): abs(other - of) for other in range(LARGEST, -1, -1)} | {"": ANYWHERE}
    return tuple(sorted(away, key=away.__getitem__))
