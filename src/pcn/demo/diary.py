"""What one network was like on its way from parent to PCN, epoch by epoch, for a report."""

from __future__ import annotations

from typing import Any

from pcn import report
from pcn.config import PCNConfig
from pcn.costs.count import count
from pcn.demo.digits import Digits
from pcn.demo.recipe import Training, accuracy_percent
from pcn.plans.plan import Plan
from pcn.statistics import Statistics, analyze
from pcn.switching.dimensions import dimension_rule, effective_dimensions
from pcn.training.meter import training_bytes
from pcn.training.requests import rank_text


class Diary:
    """Records as a training run writes them; what writing them takes is in nobody's seconds."""

    def __init__(self, digits: Digits, config: PCNConfig) -> None:
        self._digits, self._config = digits, config
        self._rule = dimension_rule(config)
        self._records: list[dict[str, Any]] = []
        self._epoch, self._seconds = 0, 0.0
        self._switch: tuple[Statistics, Plan] | None = None

    def after_epoch(self, training: Training, seconds: float) -> None:
        """Note accuracy, time and memory, and before the switch the effective dimensions."""
        self._epoch += 1
        self._seconds += seconds
        self._write(
            "epoch",
            validation_accuracy=accuracy_percent(training.model, self._digits.validation),
            train_seconds=self._seconds,
            memory_bytes=training_bytes(training.model, training.optimizer),
        )
        if self._switch is None:
            stats = analyze(training.model, self._digits.train.images.split(256))
            self._write("dimensions", rule=rank_text(self._rule), layers=effective_dimensions(stats, self._rule))

    def after_switch(self, parent: Training, small: Training, stats: Statistics, plan: Plan) -> None:
        self._switch = stats, plan
        before, after = count(parent.model), count(small.model)
        self._write(
            "switch",
            validation_accuracy=accuracy_percent(small.model, self._digits.validation),
            trainable_before=before.trainable,
            trainable_after=after.trainable,
            total_before=before.total,
            total_after=after.total,
        )

    def report(self, test_accuracy: float) -> dict[str, Any]:
        """The data of a report on the network, as it ended."""
        assert self._switch is not None
        stats, plan = self._switch
        return report.of(
            stats,
            plan,
            self._config,
            title="The demo's network on digits",
            metrics=self._records,
            test_accuracy=test_accuracy,
        )

    def _write(self, event: str, **values: Any) -> None:
        self._records.append({"event": event, "epoch": self._epoch, "step": self._epoch, **values})
