"""Runs with transformers' Trainer, in this process or in one of several."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from integrations.training import EPOCHS, SMALL, SWITCH, everything, leave_together
from pcn.integrations.transformers import SwitchCallback
from pcn.nn import PCModule

CLASSES, LENGTH, SAMPLES = 3, 6, 64
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}


def build() -> LlamaForSequenceClassification:
    """A model whose layers have no bias: what they gain must not join the Trainer's group of biases."""
    torch.manual_seed(0)
    return LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=CLASSES, pad_token_id=0))


def data() -> list[dict[str, Any]]:
    words = torch.randint(1, 20, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": sentence, "labels": int(sentence[-1]) % CLASSES} for sentence in words]


def batches() -> list[dict[str, torch.Tensor]]:
    return [transformers.default_data_collator(data()[start : start + 32]) for start in (0, 32)]


def accuracy(result: transformers.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((result.predictions.argmax(1) == result.label_ids).mean())}


class Rates(TrainerCallback):
    """The learning rate of every step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(kwargs["lr_scheduler"].get_last_lr()[0])


def make_trainer(
    folder: Path, *callbacks: TrainerCallback, kind: type[Trainer] = Trainer, model: Any = None, **options: Any
) -> Trainer:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    recipe = {"learning_rate": 3e-3, "weight_decay": 0.1, "per_device_train_batch_size": 16, "num_train_epochs": EPOCHS}
    arguments = TrainingArguments(str(folder), **{"save_strategy": "epoch"} | recipe | quiet | options)
    given = {"train_dataset": data(), "eval_dataset": data(), "compute_metrics": accuracy}
    return kind(model or build(), arguments, callbacks=list(callbacks), **given)


def switching(**options: Any) -> SwitchCallback:
    return SwitchCallback(batches, **{"config": SMALL, "at": SWITCH} | options)


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def check_every_checkpoint_resumes(folder: Path) -> str:
    """Train, then start again from each checkpoint but the last: all end with the same bits, which are returned."""

    def run(path: Path | None) -> str:
        trainer = make_trainer(folder / ("again" if path else "whole"))
        switching().attach(trainer)
        trainer.train(resume_from_checkpoint=path and str(path))
        assert isinstance(trainer.model.model.layers[0].mlp.up_proj, PCModule)
        return everything(trainer.model, trainer.optimizer)

    whole = run(None)
    *paths, _ = checkpoints(folder / "whole")
    assert len(paths) == EPOCHS - 1
    assert [path.name for path in paths if run(path) != whole] == []
    return whole


if __name__ == "__main__":
    warnings.simplefilter("error")
    leave_together(check_every_checkpoint_resumes(Path(sys.argv[1])))
