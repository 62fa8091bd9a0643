"""How a kernel is launched: tile sizes and warps from a short list, the first of it unless others were timed faster.

What PyTorch has for the same may be on that list too. Timing happens inside ``with tuning():`` only; what it finds is
remembered in this process and, with a path, in a file: by device, kernel and sizes, and by about how many rows there
are. What was timed on the nearest number serves where this one was not timed (:mod:`pcn.kernels.magnitude`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from pcn.kernels.magnitude import at_rows, nearest
from pcn.whole_files import write_whole

PACKAGED = Path(__file__).with_name("launches.json")  # found on devices that were at hand
REPEATS = 10  # of every candidate, after one that compiles
HEAD_START = 10_000_000  # cycles that a device waits while they are launched: launching is no part of their time


@dataclass(frozen=True)
class Launch:
    """One way to run a kernel: rows and columns of a tile, warps of a program, stages of its loads.

    There may be more to choose: programs of one processor and directions that are multiplied at once (0 for the usual
    number), whether rows are the right factor of a product and not the left one, whether the loops over tiles and over
    their parts are one, whether whole tiles are copied by the device's own engine, and for convolutions how much of a
    patch is multiplied at once, whether a weight stays on the chip, whether patches are read by way of L1, and whether
    products are shifted in place of them.
    """

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2
    depth: int = 0
    per_processor: int = 0
    kept: bool = False
    near: bool = False
    shifted: bool = False
    turned: bool = False
    flat: bool = False
    described: bool = False


STOCK = Launch(rows=0, columns=0, warps=0, stages=0)  # none of our kernels: what PyTorch has for the same
Result = TypeVar("Result")
Run = Callable[[Launch], Result]
Wanted = Callable[[str], bool]  # of a kernel by device, name and sizes, on any number of rows


class Choices:
    """What was found fastest, by device, kernel, sizes and about how many rows."""

    def __init__(self) -> None:
        self.found: dict[str, Launch] = {}
        self.instead: dict[str, Launch] = {}  # of what the device has too little for; nothing says that it is fast
        self.tuning: Wanted | None = None  # which kernels are to be timed
        self.path: Path | None = None  # where what is found is kept at once

    def run(
        self,
        key: str,
        rows: int,
        candidates: Sequence[Launch],
        device: torch.device,
        run: Run[Result],
        per_processor: Sequence[int] = (),
    ) -> Result:
        """Run a kernel in the way that is known as the fastest, or find it out first; return what it returns.

        Other numbers of programs ``per_processor`` are tried with the fastest of the candidates: they are nothing that
        has to be compiled.
        """
        if device.type != "cuda":  # in Triton's interpreter
            return run(next((launch for launch in candidates if launch != STOCK), STOCK))
        with torch.cuda.device(device):  # where Triton launches
            key = f"{torch.cuda.get_device_name(device)} {key}"
            wanted = self.tuning is not None and self.tuning(key)
            exact = at_rows(key, rows)
            unknown = wanted and self._known([exact], candidates, per_processor) is None
            if unknown and not torch.cuda.is_current_stream_capturing():
                fastest = _fastest(run, candidates)
                self.found[exact] = _fastest(run, [fastest, *spread([fastest], per_processor)])
                self.instead.pop(exact, None)
                if self.path is not None:
                    self.save(self.path)
            return self.launch(key, rows, candidates, run, per_processor)

    def _known(self, keys: Iterable[str], candidates: Sequence[Launch], per_processor: Sequence[int]) -> Launch | None:
        """The first that was found, but for launches of a file that are no longer among the candidates."""
        for found in map(self.found.get, keys):
            if found is not None and _is_among(found, candidates, per_processor):
                return found
        return None

    def launch(
        self, key: str, rows: int, candidates: Sequence[Launch], run: Run[Result], per_processor: Sequence[int] = ()
    ) -> Result:
        """Run the launch that was found on the nearest number of rows, or the usual one.

        Where the device has too little for it, the next one is run.
        """
        from triton.runtime.errors import OutOfResources

        known = self._known(nearest(key, rows), candidates, per_processor)
        first = self.instead.get(at_rows(key, rows)) or known or candidates[0]
        try:
            return run(first)
        except OutOfResources:
            others = [launch for launch in candidates if launch != first]
            if not others:
                raise
            self.instead[at_rows(key, rows)] = others[0]
            return self.launch(key, rows, others, run, per_processor)

    def save(self, path: Path) -> None:
        text = json.dumps({key: asdict(launch) for key, launch in self.found.items()}, indent=1) + "\n"
        write_whole(path, text.encode())

    def load(self, path: Path) -> None:
        self.found |= {key: Launch(**launch) for key, launch in json.loads(path.read_text()).items()}


CHOICES = Choices()
if PACKAGED.exists():
    CHOICES.load(PACKAGED)


def tiles_of(sizes: Sequence[tuple[int, int, int]], columns: int) -> list[Launch]:
    """Launches with tiles of so many elements, warps and stages.

    >>> tiles_of([(4096, 4, 3)], 128)[0].rows
    32
    """
    return [Launch(max(16, size // columns), columns, warps, stages) for size, warps, stages in sizes]


def spread(launches: Sequence[Launch], per_processor: Sequence[int]) -> list[Launch]:
    """The same launches with other numbers of programs.

    >>> [launch.per_processor for launch in spread([Launch(64, 64)], (2, 16))]
    [2, 16]
    """
    return [replace(launch, per_processor=number) for launch in launches if launch != STOCK for number in per_processor]


def _is_among(found: Launch, candidates: Sequence[Launch], per_processor: Sequence[int]) -> bool:
    if found in candidates:
        return True
    return found.per_processor in per_processor and replace(found, per_processor=0) in candidates


@contextmanager
def tuning(path: Path | None = None, *, anew: bool = False, only: Wanted = lambda key: True) -> Iterator[None]:
    """Time the candidates of every kernel that runs inside and is not known yet; ``path`` keeps what is found.

    It is known where it was timed on about as many rows. With ``anew`` nothing is but what the path holds: candidates
    that were not there before have their turn. ``only`` says of which kernels, by device, name and sizes, on any number
    of rows: processes that compile can share them out, and need few rows for that.
    """
    known = dict(CHOICES.found) if anew else {}
    if anew:
        CHOICES.found.clear()
    if path is not None and path.exists():
        CHOICES.load(path)
    before = CHOICES.tuning, CHOICES.path
    CHOICES.tuning, CHOICES.path = only, path
    try:
        yield
    finally:
        CHOICES.tuning, CHOICES.path = before
        if path is not None:
            CHOICES.save(path)
        CHOICES.found = known | CHOICES.found


def _fastest(run: Run[Any], launches: Sequence[Launch]) -> Launch:
    return min(launches, key=lambda launch: _time_ms(run, launch))


def _time_ms(run: Run[Any], launch: Launch) -> float:
    """How long one launch takes; infinitely long when the device has too little of something for it."""
    from triton.runtime.errors import OutOfResources

    try:
        run(launch)
    except OutOfResources:
        return float("inf")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(HEAD_START)
    begin.record()
    for _ in range(REPEATS):
        run(launch)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / REPEATS


def programs(device: torch.device, per_processor: int) -> int:
    """How many programs a device runs side by side; a few in Triton's interpreter."""
    if device.type == "cpu":
        return 3
    return per_processor * torch.cuda.get_device_properties(device).multi_processor_count
