"""What a run says of itself: after every epoch, at the switch, and in the end."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pcn.costs.count import Cost, count
from pcn.training.evaluation import accuracies_percent, accuracy_percent
from pcn.training.meter import training_bytes
from pcn.training.offers import fade_steps_left

if TYPE_CHECKING:
    from pcn.training.trainer import Trainer

Record = dict[str, Any]


def validation_accuracy(run: Trainer) -> float:
    return accuracy_percent(run.model, run.data.validation(run.world.share), run.world)


def epoch_record(run: Trainer, *, accuracy: float, loss: float, peak_memory_bytes: int | None) -> Record:
    """An epoch that has ended."""
    progress = run.progress
    return {
        "loss": loss,
        "validation_accuracy": accuracy,
        "learning_rate": run.rate_after(progress.epoch * run.steps_per_epoch - 1),
        "train_seconds": progress.train_seconds,
        "energy_j": progress.energy_j,
        "memory_bytes": training_bytes(run.model, run.optimizer),
        "peak_memory_bytes": peak_memory_bytes,
    }


def switch_record(run: Trainer, before: Cost) -> Record:
    """The network that the switch has made, beside what its parent had."""
    after = count(run.model)
    return {
        "validation_accuracy": validation_accuracy(run),
        "trainable_before": before.trainable,
        "trainable_after": after.trainable,
        "total_before": before.total,
        "total_after": after.total,
        "seconds": run.progress.switch_seconds,
        "fade_steps_left": fade_steps_left(run),
    }


def result_record(run: Trainer) -> Record:
    """What a run has led to; this reads the test set."""
    cost, progress = count(run.model), run.progress
    first, five = accuracies_percent(run.model, run.data.test(run.world.share), run.world, (1, 5))
    result = {
        "test_accuracy": first,
        "test_accuracy_top5": five,
        "validation_accuracy": validation_accuracy(run),
        "trainable_params": cost.trainable,
        "total_params": cost.total,
        **{name: value for name, value in asdict(progress).items() if name != "loss_sum"},
    }
    return result | ({"best_accuracy": None, "best_epoch": None} if run.best is None else {})
