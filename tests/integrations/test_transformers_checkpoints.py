"""Checkpoints of transformers' Trainer hold all that a run needs, wherever they lie and whenever it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Trainer, TrainerCallback

import pcn
from integrations.training import SWITCH, everything
from integrations.transformers_run import build, checkpoints, make_trainer, switching


def test_a_checkpoint_that_was_not_written_to_its_end_says_so(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    switching().attach(trainer)
    trainer.train()
    file = checkpoints(tmp_path)[-1] / "pcn_switch.bin"
    file.write_bytes(file.read_bytes()[:100])
    for said in ("pcn_switch.bin is damaged.*take the checkpoint before", "has no pcn_switch.bin.*take the checkpoint"):
        trainer = make_trainer(tmp_path)
        switching().attach(trainer)
        with pytest.raises(pcn.FileError, match=said):
            trainer.train(resume_from_checkpoint=str(file.parent))
        file.unlink(missing_ok=True)


def test_a_full_rank_checkpoint_without_the_switchs_state_is_refused(tmp_path: Path) -> None:
    """Weights would fit, and a run that starts its switch anew would end as another one."""
    full = {"config": pcn.PCNConfig(rank=1.0, skip_larger=False), "at": 1}
    trainer = make_trainer(tmp_path, num_train_epochs=2)
    switching(**full).attach(trainer)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    (checkpoints(tmp_path)[-1] / "pcn_switch.bin").unlink()
    for folder in (checkpoints(tmp_path)[-1], tmp_path / "final"):
        trainer = make_trainer(tmp_path, num_train_epochs=3)
        switching(**full).attach(trainer)
        with pytest.raises(pcn.FileError, match=r"has no pcn_switch\.bin.*take the checkpoint before.*pcn\.load"):
            trainer.train(resume_from_checkpoint=str(folder))


class Stop(TrainerCallback):
    """Stops the run where the Trainer has just written a checkpoint, and has removed the one before it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.epoch == self.epoch:
            raise KeyboardInterrupt


@pytest.mark.parametrize("epoch", [SWITCH, SWITCH + 1])
def test_a_run_that_is_stopped_right_behind_a_checkpoint_resumes(epoch: int, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "whole")
    switching().attach(trainer)
    trainer.train()
    whole = everything(trainer.model, trainer.optimizer)
    trainer = make_trainer(tmp_path / "stopped", Stop(epoch), save_total_limit=1)
    switching().attach(trainer)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    (left,) = checkpoints(tmp_path / "stopped")
    assert (left / "pcn_switch.bin").exists()
    trainer = make_trainer(tmp_path / "stopped", save_total_limit=1)
    switching().attach(trainer)
    trainer.train(resume_from_checkpoint=True)
    assert everything(trainer.model, trainer.optimizer) == whole


class InRun(Trainer):
    """Keeps checkpoints in a folder of their own, as every trial of a hyperparameter search does."""

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(self.args.output_dir) / "run-0")


def test_checkpoints_may_lie_elsewhere_than_in_the_output_folder(tmp_path: Path) -> None:
    ends = []
    for resume in (False, True):
        trainer = make_trainer(tmp_path, kind=InRun)
        switching().attach(trainer)
        trainer.train(resume_from_checkpoint=str(checkpoints(tmp_path / "run-0")[-2]) if resume else None)
        ends.append(everything(trainer.model, trainer.optimizer))
    assert ends[0] == ends[1]
    assert not checkpoints(tmp_path)


class OwnEvaluation(Trainer):
    """A trainer that hands its metrics on as NumPy made them, as that of transformers' example of answering does."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        found = self.evaluation_loop(self.get_eval_dataloader(), "Evaluation")
        metrics = {"eval_accuracy": np.mean(found.predictions.argmax(1) == found.label_ids)}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def test_a_metric_of_numpy_leaves_checkpoints_that_resume(tmp_path: Path) -> None:
    ends = []
    for resume in (False, True):
        trainer = make_trainer(tmp_path, kind=OwnEvaluation, eval_strategy="epoch")
        switching(metric="eval_accuracy").attach(trainer)
        trainer.train(resume_from_checkpoint=str(checkpoints(tmp_path)[1]) if resume else None)
        ends.append(everything(trainer.model, trainer.optimizer))
    assert ends[0] == ends[1]


def test_a_run_on_a_loaded_model_resumes_on_one_and_no_other(tmp_path: Path) -> None:
    """Llama's layers gain a bias, which the Trainer puts into another group where it finds it in the model."""

    def run(folder: Path, loaded: Path | None, checkpoint: Path | None = None) -> str:
        trainer = make_trainer(folder, model=pcn.load(build(), loaded) if loaded else None, num_train_epochs=3)
        switching(at=1).attach(trainer)
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        trainer.save_model(str(folder / "final"))
        return everything(trainer.model, trainer.optimizer)

    first, tuned, final = tmp_path / "first", tmp_path / "tuned", tmp_path / "first" / "final"
    run(first, None)
    end = run(tuned, final)
    assert run(tmp_path / "again", final, checkpoints(tuned)[1]) == end
    with pytest.raises(
        pcn.PlanError, match=r"is whole here.*was switched already.*pcn.load it from what the run was begun with"
    ):
        run(tmp_path / "again", None, checkpoints(tuned)[1])
    with pytest.raises(pcn.PlanError, match=r"is switched already here.*was whole.*build it anew, without pcn\.load"):
        run(tmp_path / "again", final, checkpoints(first)[1])
