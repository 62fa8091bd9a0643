"""transformers' Trainer trains on through the switch, and its checkpoints reload on either side of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import IterableDataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    Trainer,
    TrainerCallback,
    ViTConfig,
    ViTForImageClassification,
)

import pcn
from distributed.launch import torchrun
from integrations.training import SMALL
from integrations.transformers_run import (
    SAMPLES,
    Rates,
    batches,
    build,
    check_every_checkpoint_resumes,
    checkpoints,
    data,
    make_trainer,
    switching,
)
from pcn.distributed import state_hash
from pcn.integrations.transformers import SwitchCallback
from pcn.nn import PCModule
from pcn.plans.plan import get_plan


def test_a_resumed_run_ends_as_one_never_stopped(tmp_path: Path) -> None:
    check_every_checkpoint_resumes(tmp_path)


def test_two_processes_end_alike_and_resume(tmp_path: Path) -> None:
    done = torchrun(str(Path(__file__).parent / "transformers_run.py"), 2, str(tmp_path))
    assert done.returncode == 0, done.stdout


def test_the_schedule_goes_on_where_it_was(tmp_path: Path) -> None:
    switched, whole = Rates(), Rates()
    trainer = make_trainer(tmp_path, switched, save_strategy="no")
    switching().attach(trainer)
    trainer.train()
    make_trainer(tmp_path, whole, save_strategy="no").train()
    assert switched.seen == whole.seen
    assert len(set(whole.seen)) > 10


def test_a_checkpoint_is_loaded_by_itself(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    switching().attach(trainer)
    trainer.train()
    before, *_, after = checkpoints(tmp_path)
    loaded, (batch, _) = pcn.load(build(), after).eval(), batches()
    expected = trainer.model.eval()(**batch).logits
    torch.testing.assert_close(loaded(**batch).logits, expected, rtol=0, atol=0)
    with pytest.raises(pcn.PlanError, match="before the switch"):
        trainer.train(resume_from_checkpoint=str(before))
    renamed = {f"older.{name}": tensor for name, tensor in load_file(after / "model.safetensors").items()}
    save_file(renamed, after / "model.safetensors")
    trainer = make_trainer(tmp_path)
    switching().attach(trainer)
    with pytest.raises(pcn.FileError, match="other names"):
        trainer.train(resume_from_checkpoint=str(after))


def test_a_saved_model_is_loaded_from_its_own_configuration(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, save_strategy="no")
    switching().attach(trainer)
    trainer.save_model(str(tmp_path / "whole"))
    trainer.train()
    trainer.save_model(str(tmp_path / "switched"))
    trainer.save_model()
    assert [(tmp_path / name / "plan.json").exists() for name in ("whole", "switched", "")] == [False, True, True]
    configuration = AutoConfig.from_pretrained(tmp_path / "switched")
    model = AutoModelForSequenceClassification.from_config(configuration)
    loaded, (batch, _) = pcn.load(model, tmp_path / "switched").eval(), batches()
    torch.testing.assert_close(loaded(**batch).logits, trainer.model.eval()(**batch).logits, rtol=0, atol=0)
    pcn.fold_(trainer.model)
    trainer.save_model(str(tmp_path / "folded"))
    assert not (tmp_path / "folded" / "plan.json").exists()


def picture_trainer(folder: Path, **options: Any) -> Trainer:
    """A ViT, whose weights save_pretrained writes under older names."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=3))
    pictures = torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    data = [{"pixel_values": picture, "labels": n % 3} for n, picture in enumerate(pictures)]
    trainer = make_trainer(folder, num_train_epochs=3, **options)
    trainer = Trainer(model, trainer.args, train_dataset=data, eval_dataset=data)
    SwitchCallback([{"pixel_values": pictures}], SMALL, at=1).attach(trainer)
    return trainer


def test_a_model_that_is_saved_under_older_names_is_loaded_and_resumed(tmp_path: Path) -> None:
    trainer = picture_trainer(tmp_path)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    for folder in (tmp_path / "final", checkpoints(tmp_path)[-1]):
        loaded = pcn.load(ViTForImageClassification(AutoConfig.from_pretrained(folder)), folder)
        assert state_hash(loaded) == state_hash(trainer.model)
    again = picture_trainer(tmp_path)
    again.train(resume_from_checkpoint=str(checkpoints(tmp_path)[-2]))
    assert state_hash(again.model) == state_hash(trainer.model)


def test_the_best_of_a_model_that_is_saved_under_older_names_is_loaded(tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    trainer = picture_trainer(tmp_path, eval_strategy="epoch", **best)
    trainer.train()
    found = Path(trainer.state.best_model_checkpoint)
    assert found == checkpoints(tmp_path)[1]  # the loss falls, so that the first one after the switch has the greatest
    loaded = pcn.load(ViTForImageClassification(AutoConfig.from_pretrained(found)), found)
    assert state_hash(loaded) == state_hash(trainer.model)


def test_a_switch_that_never_comes_is_mentioned(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=2)
    switching(at=2).attach(trainer)
    with pytest.warns(UserWarning, match="the switch, at=2, has not come.*the next one starts"):
        trainer.train()
    trainer = make_trainer(tmp_path, num_train_epochs=3)
    switching(at=2).attach(trainer)
    trainer.train(resume_from_checkpoint=str(checkpoints(tmp_path)[-1]))
    trainer.evaluate()


def test_the_accuracy_decides_and_the_best_is_looked_for_anew(tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "eval_strategy": "epoch"}
    trainer = make_trainer(tmp_path, **best, num_train_epochs=8)
    callback = switching(at=pcn.AccuracySlows(share=1.0), metric="eval_accuracy").attach(trainer)
    trainer.train()
    assert callback.plan is not None
    assert (Path(trainer.state.best_model_checkpoint) / "plan.json").exists()


def test_a_metric_that_is_no_number_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_strategy="epoch", save_strategy="no")
    trainer.compute_metrics = lambda result: {"accuracy": "high"}
    switching(metric="eval_accuracy").attach(trainer)
    with pytest.raises(pcn.ConfigError, match="'eval_accuracy' as 'high': log one number"):
        trainer.train()


def test_an_evaluation_without_the_metric_is_passed_by(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_strategy="epoch", save_strategy="no")
    trainer.eval_dataset = {"known": data(), "new": data()}
    callback = switching(metric="eval_known_accuracy").attach(trainer)
    trainer.evaluate(data(), metric_key_prefix="before")
    trainer.train()
    assert callback.plan is not None
    assert trainer.evaluate(data(), metric_key_prefix="test")["test_accuracy"] > 0


def test_an_epoch_that_was_evaluated_without_the_metric_is_not(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_strategy="epoch", save_strategy="no")
    trainer.eval_dataset = {"known": data(), "new": data()}
    switching(metric="eval_accuracy").attach(trainer)
    said = r"'eval_accuracy' is not among.*eval_known_accuracy.*eval_new_accuracy.*did you mean"
    with pytest.raises(pcn.ConfigError, match=said):
        trainer.train()
    assert trainer.state.epoch == 1


def test_steps_are_the_optimizers(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, gradient_accumulation_steps=2, max_steps=3, save_strategy="steps", save_steps=1)
    switching(at=pcn.AfterStep(2)).attach(trainer)
    trainer.train()
    assert [(path / "plan.json").exists() for path in checkpoints(tmp_path)] == [False, True, True]
    assert isinstance(trainer.model.model.layers[0].mlp.up_proj, PCModule)


class Unsized(IterableDataset[dict[str, Any]]):
    """Data whose end shows only when it is reached, so that the Trainer counts a fraction of an epoch."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(data())


class SwitchedAt(TrainerCallback):
    """After how many steps the first one of a switched model began; ends epochs early, where that is asked for."""

    def __init__(self, longest: int = SAMPLES) -> None:
        self.longest, self.step = longest, None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.step is None and get_plan(kwargs["model"]) is not None:
            self.step = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_epoch_stop |= state.global_step % self.longest == 0


@pytest.mark.parametrize("at", [1, 2])
def test_an_epoch_counts_that_the_trainer_takes_for_a_part_of_one(at: int, tmp_path: Path) -> None:
    unsized, stopped, steps = SwitchedAt(), SwitchedAt(longest=3), SAMPLES // 16
    trainer = make_trainer(tmp_path, unsized, save_strategy="no", max_steps=3 * steps)
    trainer.train_dataset = Unsized()
    switching(at=at).attach(trainer)
    trainer.train()
    trainer = make_trainer(tmp_path, stopped, save_strategy="no")
    switching(at=at).attach(trainer)
    trainer.train()
    assert (unsized.step, stopped.step) == (at * steps, at * stopped.longest)


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pcn.ConfigError, match="metric="):
        SwitchCallback([], at=pcn.AccuracySlows())
    with pytest.raises(pcn.ConfigError, match="attach"):
        make_trainer(tmp_path, switching()).train()
