"""A switch that waits for epochs and is told of steps alone: as no step says where an epoch ends, it shows at last."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass

from pcn.switching.rules import SwitchRule
from pcn.warn import warn


@dataclass
class Told:
    """The last step that a switch was told, and whether it is told of epochs or has begun without one."""

    step: int | None = None
    epochs: bool = False
    error: int | None = None  # which one had last ended something when the step was told

    def hear(self, step: int) -> int:
        self.step, self.error = step, _last_error()
        return step


def warn_when_gone(switch: object, rule: SwitchRule, told: Told) -> None:
    """Warn when a switch is let go, or the program ends, that could never switch; until then an epoch may be told.

    Nothing is said of a run that an error has ended since its last step.
    """
    if getattr(rule, "counts_epochs", False):
        weakref.finalize(switch, _warn_if_untold, rule, told)


def _warn_if_untold(rule: SwitchRule, told: Told) -> None:
    if told.step is not None and not told.epochs and told.error == _last_error():
        warn(
            f"a switch with at={rule!r} was told up to step {told.step} and of no epoch, so it never switched: call "
            "switch.after_epoch(epoch, batches) after every epoch, or give at=pcn.AfterStep(...), which counts steps"
        )


def _last_error() -> int | None:
    """Which error was last shown to the user as handled by nobody."""
    error = getattr(sys, "last_value", None)
    return None if error is None else id(error)
