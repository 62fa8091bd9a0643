"""Records by what they have in common, and their means."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]
Table = tuple[list[str], list[list[str]]]  # the head, and the rows


def by_length(records: list[Record]) -> list[tuple[str, list[Record]]]:
    """The runs of each network and length, each with what says the length: nothing where a network has only one.

    Ways to train a network stand behind a comma in its name, and are the same network.
    """
    found: dict[tuple[str, int], list[Record]] = {}
    lengths: dict[str, set[int]] = {}
    for record in records:
        found.setdefault((record["network"], record["epochs"]), []).append(record)
        lengths.setdefault(_without_way(record["network"]), set()).add(record["epochs"])
    return [
        (f", {epochs} epochs" if len(lengths[_without_way(network)]) > 1 else "", runs)
        for (network, epochs), runs in found.items()
    ]


def _without_way(network: str) -> str:
    return network.split(", ")[0]


def grouped(records: list[Record], key: str) -> dict[Any, list[Record]]:
    found: dict[Any, list[Record]] = {}
    for record in records:
        found.setdefault(record[key], []).append(record)
    return found


def mean(records: Sequence[Record], key: str) -> float:
    return statistics.fmean(record[key] for record in records)
