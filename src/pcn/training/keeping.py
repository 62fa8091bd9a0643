"""A run's checkpoints: when they are due, how they are written, and how a run goes on from the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pcn.training.losses import check_finite
from pcn.training.state import put_back_, take

if TYPE_CHECKING:
    from pcn.training.trainer import Trainer


class Keeper:
    """Writes the checkpoints of one run; only the first process has a folder, but all take part."""

    def __init__(self, run: Trainer) -> None:
        self.run, self.folder = run, run.folder
        self.active = run.world.ranks.from_one(lambda: run.folder is not None)
        self._last = 0  # step

    @property
    def due(self) -> bool:
        run = self.run
        return run.progress.step - self._last >= run.settings.checkpoint_every * run.steps_per_epoch

    def write(self) -> None:
        run = self.run
        self._last = run.progress.step
        if not self.active:
            return
        run.count_time()
        check_finite(run.losses.settle(), run.progress.epoch + 1)  # the last good one stays
        state = take(run)
        if self.folder is not None:
            self.folder.checkpoints.write(run.progress.step, state)
        run.watch.lap()

    def resume(self) -> dict[str, Any] | None:
        """Go on from the last checkpoint, if there is one, and return what there is to tell about that."""
        run, folder = self.run, self.folder
        if not self.active:
            return None
        state, damaged = run.world.ranks.from_one(
            lambda: (None, []) if folder is None else folder.checkpoints.newest(run.device)
        )
        if state is not None:
            put_back_(run, state)
            self._last = run.progress.step
        if folder is not None:
            folder.forget_after(run.progress.step)
        run.watch.lap()
        if state is None:
            return None
        return {"event": "resumed", "epoch": run.progress.epoch, "step": run.progress.step, "damaged": damaged}
