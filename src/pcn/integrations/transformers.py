"""The switch as a callback of transformers' Trainer."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pcn.errors import ConfigError, FileError, PCNError
from pcn.integrations.accelerate import FILE, read_state
from pcn.integrations.callback_switch import CallbackSwitch, State, Wish, loading_optimizers, plan_in
from pcn.layers import unwrap
from pcn.nn import PCModule
from pcn.plans.plan import Plan, get_plan
from pcn.running.example import Batches
from pcn.running.optimizers import as_optimizers
from pcn.saving.model_folder import PLAN_FILE, save_among
from pcn.statistics import Statistics
from pcn.whole_files import write_whole

try:
    from transformers import (
        PreTrainedModel,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise PCNError("this needs transformers, which is not installed: pip install transformers accelerate") from error

ROUNDING = 1e-6  # of the Trainer's epochs, which are sums of fractions


class SwitchCallback(TrainerCallback):
    """Switches the model that is trained, once, and stands in the Trainer's checkpoints; call :meth:`attach`.

    ``batches`` (or a function that returns them) are a few thousand training samples *without augmentation*, in every
    process its own or the same; ``metric`` is the name of the validation accuracy, such as ``"eval_accuracy"``, for
    rules that ask for one; everything else is as for :class:`pcn.Switch`. After epoch 3 means at the start of the next
    one, so that checkpoints of epoch 3 are still the whole model's. Checkpoints from after the switch, and what
    ``trainer.save_model(folder)`` writes then, hold plan and weights as ``pcn.save`` does, for
    ``pcn.load(model, folder)``.
    """

    def __init__(self, batches: Batches, config: Wish = None, *, metric: str | None = None, **options: Any) -> None:
        self._switch = CallbackSwitch(batches, config, metric, options)
        self._trainer: Trainer | None = None
        self._resumed = False
        self._epochs: int | None = None  # that are done, once one has ended in this run

    @property
    def plan(self) -> Plan | None:
        """The plan, once it was applied."""
        return self._switch.plan

    @property
    def statistics(self) -> Statistics | None:
        """What the plan was made from, with ``keep_statistics``."""
        return self._switch.statistics

    def attach(self, trainer: Trainer) -> SwitchCallback:
        """Join a trainer: what it wraps follows the switch, and its checkpoints resume from either side of it."""
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigError("FSDP and DeepSpeed are not supported: train on one device or with plain torchrun")
        trainer.add_callback(self)
        self._trainer = trainer
        load_weights, load_optimizer = trainer._load_from_checkpoint, trainer._load_optimizer_and_scheduler
        save = trainer._save

        # No event comes before weights are loaded. Those of a switched model wait until the optimizer, made from the
        # model as it was built, has got the plan's shape together with it.
        def load_weights_or_wait(checkpoint: str, model: Any = None) -> None:
            state = _read_state(checkpoint)
            if state is None:
                _check_no_plan(checkpoint)
            if plan_in(state, trainer.model) is None:
                with nullcontext() if state is not None else _saying_what_lacks(checkpoint):
                    load_weights(checkpoint, model)

        def load_optimizer_last(checkpoint: str) -> None:
            made_switched = get_plan(trainer.model) is not None
            self._begin(trainer, _read_state(checkpoint))
            if self.plan is not None:
                with _surely_loaded(trainer.model, checkpoint):
                    load_weights(checkpoint)
            with loading_optimizers([trainer.model], made_switched=made_switched):
                load_optimizer(checkpoint)
            self._resumed = True

        # What save_model calls, also for a checkpoint, in the process that writes. All of ours is in the folder before
        # the Trainer uploads it, removes older ones and tells other callbacks, after any of which a run may be stopped.
        def save_with_plan(output_dir: str | None = None, **state: Any) -> None:
            switched = get_plan(trainer.model) is not None
            if switched and isinstance(unwrap(trainer.model), PreTrainedModel):
                # It renames, converts and splits weights for from_pretrained, which cannot build this model.
                state["state_dict"] = {}
            save(output_dir, **state)
            folder = Path(trainer.args.output_dir if output_dir is None else output_dir)
            if switched and trainer.args.should_save:
                save_among(trainer.model, folder)
            elif trainer.args.should_save:
                (folder / PLAN_FILE).unlink(missing_ok=True)  # of another model that was saved there
            if trainer.args.should_save and folder.name == f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}":
                self._write_state(folder)

        trainer._save = save_with_plan
        trainer._load_from_checkpoint = load_weights_or_wait
        trainer._load_optimizer_and_scheduler = load_optimizer_last
        return self

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._trainer is None:
            raise ConfigError("call SwitchCallback(...).attach(trainer) in place of callbacks=[SwitchCallback(...)]")
        if not self._resumed:
            self._begin(self._trainer, None)
        self._resumed, self._epochs = False, None

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        done = int(state.epoch + ROUNDING) if self._epochs is None else self._epochs
        _forget_best(state, self._switch.after_epoch(done))

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The Trainer's count is a fraction here where data without a length ran out, or a callback ended the epoch.
        self._epochs = math.ceil(state.epoch - ROUNDING)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        _forget_best(state, self._switch.after_step(state.global_step))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        self._switch.after_validation(metrics)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            self._switch.warn_if_it_never_came()
        self._switch.end()

    def _write_state(self, folder: Path) -> None:
        state = self._switch.state_dict()
        if state:  # otherwise nothing was trained, and there is nothing to resume
            buffer = io.BytesIO()
            torch.save(state, buffer)
            write_whole(folder / FILE, buffer.getbuffer())

    def _begin(self, trainer: Trainer, state: State | None) -> None:
        assert trainer.optimizer is not None
        self._switch.begin(trainer.model_wrapped, as_optimizers(trainer.optimizer), state)


def _read_state(checkpoint: str) -> State | None:
    path = Path(checkpoint) / FILE
    return read_state(path) if path.exists() else None


def _check_no_plan(checkpoint: str) -> None:
    """Raise for a switched model's folder without the switch's state, from which a run would end as another one."""
    if (Path(checkpoint) / PLAN_FILE).exists():
        raise FileError(
            f"{checkpoint} holds a switched model and has no {FILE}, so that no run can be resumed from it. If it is a "
            "checkpoint, the run was stopped while it wrote this: take the checkpoint before it. If save_model or "
            "pcn.save wrote it, train pcn.load(model, folder) without resume_from_checkpoint"
        )


@contextmanager
def _saying_what_lacks(checkpoint: str) -> Iterator[None]:
    """Say of weights that do not fit that nothing of a switch is written beside them, which may be why."""
    try:
        yield
    except RuntimeError as error:
        raise FileError(
            f"the weights in {checkpoint} do not fit the model, and it has no {FILE}: the run may have been stopped "
            f"while it wrote this; take the checkpoint before it ({error})"
        ) from error


@contextmanager
def _surely_loaded(model: nn.Module, checkpoint: str) -> Iterator[None]:
    """Raise when bases were not loaded: the Trainer only logs that names in a checkpoint are not the model's."""
    layers = (layer for layer in model.modules() if isinstance(layer, PCModule))
    bases = [basis for layer in layers for basis in (layer.basis, layer.output_basis) if basis is not None]
    with torch.no_grad():
        for basis in bases:
            basis.fill_(float("nan"))
    yield
    if any(bool(basis.isnan().any()) for basis in bases):
        raise FileError(
            f"the weights in {checkpoint} have other names than the model's, as where transformers alone has written "
            "them; take a checkpoint that this callback wrote"
        )


def _forget_best(state: TrainerState, plan: Plan | None) -> None:
    """After the switch, look for the best checkpoint anew: an earlier one no longer fits the model."""
    if plan is not None:
        state.best_metric = state.best_global_step = state.best_model_checkpoint = None
