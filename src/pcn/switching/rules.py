"""When to switch: after so many epochs or steps, when accuracy slows, or when the subspaces have settled."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from pcn.config import check_count
from pcn.errors import ConfigError
from pcn.rank_rules import is_number


@dataclass(frozen=True)
class Progress:
    """What a rule may look at: epochs and steps done, and what was seen after each epoch.

    ``accuracies`` are those on the validation set; ``movements`` say how far the leading subspaces moved since the
    epoch before (:func:`pcn.switching.movement.movement`), and are there for a rule that sets ``watches_subspaces``.
    """

    epoch: int = 0
    step: int = 0
    accuracies: tuple[float, ...] = ()
    movements: tuple[float, ...] = ()


@runtime_checkable
class SwitchRule(Protocol):
    """Anything that says, after an epoch or a step, whether it is time."""

    def due(self, progress: Progress) -> bool: ...


@dataclass(frozen=True)
class AfterEpoch:
    """Switch when this many epochs are done (or later, should a call have been missed).

    >>> AfterEpoch(15).due(Progress(epoch=14)), AfterEpoch(15).due(Progress(epoch=15))
    (False, True)
    """

    epoch: int
    counts_epochs = True

    def __post_init__(self) -> None:
        _check_count(self, self.epoch)

    def due(self, progress: Progress) -> bool:
        return progress.epoch >= self.epoch


@dataclass(frozen=True)
class AfterStep:
    """Switch when this many optimizer steps are done, in the middle of an epoch.

    >>> AfterStep(2000).due(Progress(step=1999)), AfterStep(2000).due(Progress(step=2000))
    (False, True)
    """

    step: int
    counts_steps = True

    def __post_init__(self) -> None:
        _check_count(self, self.step)

    def due(self, progress: Progress) -> bool:
        return progress.step >= self.step


@dataclass(frozen=True)
class AccuracySlows:
    """Switch when validation accuracy no longer rises at a high rate, the paper's heuristic made precise.

    The rise of the last epoch must be below ``share`` of the best rise of any epoch before it. Accuracies may be in
    percent or fractions, as only their ratio counts; two rises are needed, so three epochs at the least.

    >>> rule = AccuracySlows(share=0.25)
    >>> [rule.due(Progress(n, accuracies=(40.0, 60.0, 68.0, 70.0)[:n])) for n in (1, 2, 3, 4)]
    [False, False, False, True]
    """

    share: float = 0.25
    needs_accuracy = True
    counts_epochs = True

    def __post_init__(self) -> None:
        if not (is_number(self.share) and 0 < self.share <= 1):
            raise ConfigError(f"AccuracySlows({self.share!r}): the share must lie in (0, 1]")

    def due(self, progress: Progress) -> bool:
        rises = [after - before for before, after in pairwise(progress.accuracies)]
        if len(rises) < 2:
            return False
        best = max(rises[:-1])
        return best > 0 and rises[-1] < self.share * best


@dataclass(frozen=True)
class SubspacesSettle:
    """Switch when the subspaces of an epoch ago still hold nearly all that today's hold.

    ``within`` is the largest share of the variance in today's leading subspaces, averaged over the activations, that
    those of the epoch before may miss. A large learning rate keeps them moving for good: no new low for ``patience``
    epochs in a row is taken as settled too. Looking costs one pass over the calibration batches after every epoch;
    let them be the same ones, or chance moves the subspaces.

    >>> rule = SubspacesSettle(within=0.05)
    >>> [rule.due(Progress(n, movements=(0.3, 0.1, 0.04)[: n - 1])) for n in (1, 2, 3, 4)]
    [False, False, False, True]
    >>> [rule.due(Progress(n, movements=(0.3, 0.2, 0.21, 0.2)[: n - 1])) for n in (3, 4, 5)]
    [False, False, True]
    """

    within: float = 0.05
    patience: int = 2
    watches_subspaces = True
    counts_epochs = True

    def __post_init__(self) -> None:
        if not (is_number(self.within) and 0 < self.within < 1):
            raise ConfigError(f"SubspacesSettle({self.within!r}): the share must lie in (0, 1)")
        check_count("SubspacesSettle.patience", self.patience)

    def due(self, progress: Progress) -> bool:
        seen = progress.movements
        if not seen:
            return False
        return seen[-1] <= self.within or len(seen) - 1 - seen.index(min(seen)) >= self.patience


def as_switch_rule(at: int | SwitchRule) -> SwitchRule:
    """Turn 15 into ``AfterEpoch(15)``; rules pass through."""
    if isinstance(at, int):
        return AfterEpoch(at)
    if isinstance(at, SwitchRule) and not isinstance(at, type):
        return at
    raise ConfigError(f"at={at!r}: give a number of epochs or a rule such as AfterStep(500) or AccuracySlows()")


def _check_count(rule: object, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ConfigError(f"{type(rule).__name__}({count!r}): give a whole number of at least 0")
