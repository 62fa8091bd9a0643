"""What runs have taken, to start and for an epoch, kept beside the results: the next driver knows it at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from pcn.whole_files import write_whole
from records import alone_in

FILE = "peers_pace.json"
LAST = 5  # runs of a method that count: what they take changes with the code and with what runs beside them


@dataclass(frozen=True)
class Taken:
    """Seconds of one run, or of several on average: for an epoch, and for all that is no epoch, as compilation."""

    start_s: float
    epoch_s: float

    def seconds(self, epochs: int) -> float:
        return self.start_s + epochs * self.epoch_s


class Pace:
    """What runs have taken that were made in one ``way``, by network and method."""

    def __init__(self, path: Path, way: str) -> None:
        self.path, self.way = path, way
        self.known = _read(path)

    def learn(self, network: str, method: str, taken: Taken) -> None:
        """Know what one more run has taken, together with what is in the file by now."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(self.path.parent):
            self.known = _read(self.path)
            methods = self.known.setdefault(self.way, {}).setdefault(network, {})
            methods[method] = [*methods.get(method, []), [round(taken.start_s, 3), round(taken.epoch_s, 3)]][-LAST:]
            write_whole(self.path, (json.dumps(self.known, indent=1) + "\n").encode())

    def usual(self, network: str, method: str) -> Taken | None:
        """What a run may take: as others of its method, or else of its network; None where none is known."""
        methods = self.known.get(self.way, {}).get(network, {})
        known = methods.get(method) or [each for runs in methods.values() for each in runs]
        return Taken(*map(fmean, zip(*known, strict=True))) if known else None


def way(together: int, *, eager: bool, solo: bool = False) -> str:
    """What times depend on beside network and method, in words."""
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return ", ".join([machine, *(["solo"] if solo else []), f"{together} at once", *(["eager"] if eager else [])])


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}
