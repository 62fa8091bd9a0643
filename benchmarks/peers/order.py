"""Every run of the comparison in the order in which they answer most: the grid of a method first, then seed by seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from peers.parents import PARENTS, Point

METHODS = (
    "parent",
    "narrow",  # the parent with every width times the same share
    "narrow-planned",  # a plain network with the widths that the planner suggests
    "pcn-from-scratch",  # the planner's architecture with random bases, never switched
    "pcn-paper",  # the paper's ranks and its fresh optimizer at the switch
    "pcn-planner",
    "pcn-planner-random-basis",  # the same budget in random directions, preconditioned by the data like the others
    "svd-quarter",
    "svd-stable-rank",
    "torch-pruning",
    "pcn-planner-four-patterns",  # the same share of every layer, each direction in four patterns of taps
    "pcn-planner-every-tap",  # by the response, and every tap of a kernel is trained, in fewer directions
    "pcn-planner-at-once",  # the same budget before any training: shows what training the wide network first is worth
    "pcn-planner-sized",  # with coordinates that are sized for Adam, which budgets do by themselves since
)
MAIN = ("parent", "narrow", "pcn-planner", "pcn-paper")
ARCHITECTURE = ("narrow-planned", "pcn-from-scratch")  # would show a gain that is mere search of an architecture
FOUR_PATTERNS, EVERY_TAP = ("pcn-planner-four-patterns",), ("pcn-planner-every-tap",)
FORMER = FOUR_PATTERNS + EVERY_TAP  # what the planner was before, on WideResNet-20, the latest first
AT_ONCE, SIZED = ("pcn-planner-at-once",), ("pcn-planner-sized",)
REST = tuple(method for method in METHODS if method not in MAIN + ARCHITECTURE + FORMER + AT_ONCE + SIZED)
CONV4 = tuple(method for method in METHODS if method not in FORMER + AT_ONCE + SIZED)
SMALL = tuple(method for method in MAIN if method != "parent")  # the parent is the same for every size
FIRST_SEED = 10  # of final runs: our method was chosen by trials on seeds 0 to 4, and the grids by runs on seed 0


@dataclass(frozen=True)
class Run:
    """One run; a ``point`` makes it one of the grid, without it is final and takes what the grid has chosen."""

    method: str
    parent: str
    target: int
    epochs: int
    seed: int
    point: Point | None = None

    def __str__(self) -> str:
        rates = "" if self.point is None else f" at {self.point.learning_rate:g}, {self.point.weight_decay:g}"
        return f"{self.method} {self.parent} {self.target / 1e6:.2f}M {self.epochs} epochs seed {self.seed}{rates}"


@dataclass(frozen=True)
class Piece:
    """Methods that are run at one size and length, over so many seeds from ``FIRST_SEED`` on."""

    parent: str
    target: int
    epochs: int
    methods: tuple[str, ...]
    seeds: int


PIECES = (
    Piece("wide_resnet20", 1_094_154, 60, MAIN, 5),
    Piece("wide_resnet20", 1_094_154, 182, ("parent", "narrow", "pcn-planner"), 3),  # the paper's own length
    Piece("wide_resnet20", 473_802, 182, ("narrow", "pcn-planner"), 3),
    Piece("wide_resnet20", 473_802, 60, SMALL, 5),
    Piece("wide_resnet20", 1_094_154, 60, ARCHITECTURE, 5),
    Piece("wide_resnet20", 1_094_154, 60, REST, 3),
    Piece("wide_resnet20", 1_094_154, 60, FORMER, 5),
    Piece("wide_resnet20", 1_094_154, 182, FOUR_PATTERNS, 3),
    Piece("wide_resnet20", 473_802, 182, FOUR_PATTERNS, 3),
    Piece("conv4", 101_810, 20, CONV4, 5),
    Piece("wide_resnet20", 473_802, 60, ARCHITECTURE, 5),
    Piece("wide_resnet20", 473_802, 60, REST, 3),
    Piece("conv4", 101_810, 20, SIZED, 5),
    Piece("conv4", 101_810, 20, AT_ONCE, 5),
    Piece("wide_resnet20", 1_094_154, 60, AT_ONCE, 3),
)


def in_order(pieces: tuple[Piece, ...] = PIECES) -> list[Run]:
    """All runs, each once."""
    return list(dict.fromkeys(run for piece in pieces for run in _runs(piece)))


def piece_number(run: Run) -> int:
    """Which piece a run belongs to: the first that has it."""
    return _numbers().get(run, len(PIECES))


@cache
def _numbers() -> dict[Run, int]:
    return {run: number for number, piece in reversed([*enumerate(PIECES)]) for run in _runs(piece)}


def _runs(piece: Piece) -> Iterator[Run]:
    planner_first = sorted(piece.methods, key=lambda method: method != "pcn-planner")  # others wait for its plan
    for method in planner_first:
        yield from grid_runs(method, piece.parent)
    for seed in range(FIRST_SEED, FIRST_SEED + piece.seeds):
        for method in piece.methods:
            yield Run(method, piece.parent, piece.target, piece.epochs, seed)


def grid_runs(method: str, parent: str) -> list[Run]:
    """The grid of a method: once for each parent, at its first size, on one seed."""
    found = PARENTS[parent]
    first = Run(method, parent, found.sizes[0], found.grid_epochs, 0)
    usual_first = sorted(found.grid, key=lambda point: point != found.usual)
    return [replace(first, point=point) for point in usual_first]
