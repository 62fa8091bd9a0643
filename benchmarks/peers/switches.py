"""How another method takes our switch's place in a training loop: it decides once, and is rebuilt on resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pcn.statistics import Statistics
from pcn.switching import Switch
from pcn.training import Trainer
from pcn.training.switch_time import parse_switch

Batches = Callable[[], Iterable[Tensor]]


@dataclass(frozen=True)
class Decision:
    """What a method has decided, as plain data: enough to give another copy of the network the same shape."""

    what: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps(self.what)


class PeerSwitch(Switch):
    """Makes the network small when ours would; the statistics of the layers' inputs are not looked at."""

    plan: Decision | None

    def __init__(self, trainer: Trainer, target: int) -> None:
        super().__init__(trainer.model, trainer.optimizer, at=parse_switch(trainer.settings.switch_at))
        self.trainer, self.target = trainer, target

    def cut_(self, batches: Batches) -> dict[str, Any]:
        """Make the network small and say what was decided."""
        raise NotImplementedError

    def rebuild_(self, what: dict[str, Any]) -> None:
        """Give the network, and the optimizer where it belongs to the method, the shape that was decided on."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["plan"] is not None and self.plan is None:
            self.plan = Decision(json.loads(state["plan"]))
            self.rebuild_(self.plan.what)

    def _apply(self, batches: Batches, stats: Statistics | None) -> Decision:
        self.plan = Decision(self.cut_(batches))
        return self.plan
