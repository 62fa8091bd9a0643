"""How far a run has come."""

from __future__ import annotations

from dataclasses import dataclass

from pcn.training.meter import plus


@dataclass
class RunProgress:
    """How far a run has come; seconds and joules are None where they are not known."""

    step: int = 0
    epoch: int = 0
    loss_sum: float = 0.0
    train_seconds: float | None = 0.0
    energy_j: float | None = 0.0
    switch_seconds: float | None = None
    setup_seconds: float | None = 0.0
    switch_epoch: int | None = None
    fade_step: int | None = None  # after which what the cut takes away began to fade
    best_accuracy: float = -1.0
    best_epoch: int = 0
    branched: bool = False  # whether the first epochs were another run's

    def count(self, seconds: float, energy_j: float | None) -> None:
        """Add what training has taken."""
        self.train_seconds = plus(self.train_seconds, seconds)
        self.energy_j = plus(self.energy_j, energy_j)

    def count_switch(self, seconds: float) -> None:
        """Add what looking, planning and cutting have taken."""
        self.switch_seconds = (self.switch_seconds or 0.0) + seconds
