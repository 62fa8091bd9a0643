"""What a rule has to go by: the epochs so far, and what was seen after each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from pcn.errors import ConfigError
from pcn.switching.movement import Subspaces
from pcn.switching.rules import Progress, SwitchRule


@dataclass
class History:
    """Epochs done, accuracies and movements of the subspaces so far, and where these were last.

    ``step`` is the last step that was told, None where none was.
    """

    epoch: int = 0
    step: int | None = None
    accuracies: list[float] = field(default_factory=list)
    movements: list[float] = field(default_factory=list)
    subspaces: Subspaces = field(default_factory=dict)
    waits: bool = False  # for the first step of all, since an epoch ended

    def copy(self) -> History:
        """One that grows for itself."""
        return replace(self, accuracies=[*self.accuracies], movements=[*self.movements])

    def checked(self, accuracy: float | None, rule: SwitchRule) -> list[float]:
        """An epoch's accuracy as one more entry, or none; raises where the rule cannot do with what was given."""
        if accuracy is None:
            if getattr(rule, "needs_accuracy", False):
                raise ConfigError(f"{rule!r} needs accuracy=..., the validation accuracy after this epoch")
            return []
        try:
            finite = math.isfinite(accuracy)
        except TypeError:
            finite = False
        if not finite:
            raise ConfigError(f"accuracy={accuracy!r} after epoch {self.epoch}: give a finite number")
        return [float(accuracy)]

    def check_told(self, rule: SwitchRule) -> None:
        """Raise when a rule waits for a step and none is told between two ends of an epoch.

        The first may come from before: whoever resumes a run tells where it stood.
        """
        if self.step is not None or not getattr(rule, "counts_steps", False):
            return
        if self.waits:
            raise ConfigError(
                f"{rule!r} counts steps, and none was told up to the end of epoch {self.epoch}: call "
                "switch.after_step(step, batches) after every step of the optimizer, with how many are done"
            )
        self.waits = True

    def progress(self) -> Progress:
        return Progress(self.epoch, self.step or 0, tuple(self.accuracies), tuple(self.movements))

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "step": self.step,
            "accuracies": list(self.accuracies),
            "movements": list(self.movements),
            "directions": dict(self.subspaces),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = int(state["epoch"])
        self.step = state.get("step", 0)  # states without it were written where steps may have been told
        self.accuracies = [float(value) for value in state["accuracies"]]
        self.movements = [float(value) for value in state["movements"]]
        self.subspaces = dict(state["directions"])
