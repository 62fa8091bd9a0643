"""Records by what they have in common, and their means."""

from __future__ import annotations

import statistics
from typing import Any

Record = dict[str, Any]
Table = tuple[list[str], list[list[str]]]  # the head, and the rows


def grouped(records: list[Record], key: str) -> dict[Any, list[Record]]:
    found: dict[Any, list[Record]] = {}
    for record in records:
        found.setdefault(record[key], []).append(record)
    return found


def mean(records: list[Record], key: str) -> float:
    return statistics.fmean(record[key] for record in records)
