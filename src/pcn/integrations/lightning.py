"""The switch as a Lightning callback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from pcn.errors import ConfigError, PCNError
from pcn.integrations.callback_switch import CallbackSwitch, State, Wish, loading_optimizers, plan_in
from pcn.plans.plan import Plan, get_plan
from pcn.running.example import Batches
from pcn.statistics import Statistics

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
except ImportError as error:
    raise PCNError("this needs Lightning, which is not installed: pip install lightning") from error

STATE_KEY = "pcn.SwitchCallback"
Module = TypeVar("Module", bound=LightningModule)


class SwitchCallback(Callback):
    """Switches the module that is trained, once, and stands in Lightning's checkpoints.

    ``batches`` (or a function that returns them) are a few thousand training samples *without augmentation*, in every
    process its own or the same; ``metric`` is the name of a logged validation accuracy, for rules that ask for one (log
    it with ``sync_dist=True``, as the first process decides); everything else is as for :class:`pcn.Switch`. After
    epoch 15 means at the start of the next one, so that checkpoints of epoch 15 are still the whole module's. From then
    on, ``ModelCheckpoint`` and ``EarlyStopping`` look for the best anew.
    """

    def __init__(self, batches: Batches, config: Wish = None, *, metric: str | None = None, **options: Any) -> None:
        self._switch = CallbackSwitch(batches, config, metric, options)
        self._state: State | None = None
        self._weights: dict[str, Any] | None = None
        self._step = 0

    @property
    def plan(self) -> Plan | None:
        """The plan, once it was applied."""
        return self._switch.plan

    @property
    def statistics(self) -> Statistics | None:
        """What the plan was made from, with ``keep_statistics``."""
        return self._switch.statistics

    @property
    def state_key(self) -> str:
        return STATE_KEY

    def state_dict(self) -> State:
        return self._switch.state_dict()

    def load_state_dict(self, state_dict: State) -> None:
        self._state = state_dict

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._state = self._weights = None
        theirs = pl_module.on_load_checkpoint

        def on_load_checkpoint(checkpoint: dict[str, Any]) -> None:
            self._before_weights(pl_module, checkpoint, fitting=stage == "fit")
            theirs(checkpoint)

        # The one hook between the reading of a checkpoint and the loading of its weights is the module's.
        pl_module.__dict__["on_load_checkpoint"] = on_load_checkpoint

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pl_module.__dict__.pop("on_load_checkpoint", None)
        trainer.strategy.__dict__.pop("load_optimizer_state_dict", None)
        self._switch.end()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.__dict__.pop("on_load_checkpoint", None)
        _check(trainer)
        assert trainer.strategy.model is not None
        # Lightning casts the batches of its loaders so, for precision="bf16-true" and the like.
        convert = trainer.precision_plugin.convert_input
        self._explain_loading(trainer, made_switched=get_plan(pl_module) is not None)
        self._switch.begin(trainer.strategy.model, trainer.optimizers, self._state, convert)
        if self._weights is not None:
            trainer.strategy.load_model_state_dict({"state_dict": self._weights}, strict=pl_module.strict_loading)
            self._weights = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.strategy.__dict__.pop("load_optimizer_state_dict", None)
        self._step = trainer.global_step
        self._after_epoch(trainer)  # resumed between two epochs, there may be no other call

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._after_epoch(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > self._step:  # otherwise gradients are being accumulated
            self._step = trainer.global_step
            _forget_best(trainer, self._switch.after_step(self._step))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._switch.after_validation(trainer.callback_metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and not trainer.fast_dev_run:  # which only tries a few batches
            self._switch.warn_if_it_never_came()

    def _after_epoch(self, trainer: Trainer) -> None:
        _forget_best(trainer, self._switch.after_epoch(trainer.current_epoch))

    def _explain_loading(self, trainer: Trainer, *, made_switched: bool) -> None:
        """Have the strategy say more where the state of optimizers does not fit, for which there is no hook."""
        load, modules = trainer.strategy.load_optimizer_state_dict, [trainer.lightning_module]

        def load_or_say_why(checkpoint: Mapping[str, Any]) -> None:
            with loading_optimizers(modules, made_switched=made_switched):
                load(checkpoint)

        trainer.strategy.__dict__["load_optimizer_state_dict"] = load_or_say_why

    def _before_weights(self, module: LightningModule, checkpoint: dict[str, Any], *, fitting: bool) -> None:
        plan = plan_in(_state_in(checkpoint), module)
        if plan is None:
            return
        if fitting:
            # Optimizers are made from the module as it was built, then both get the plan's shape; its weights wait.
            self._weights = checkpoint["state_dict"]
            checkpoint["state_dict"] = module.state_dict()
        elif get_plan(module) is None:
            plan.reshape_(module)


def load_from_checkpoint(module_class: type[Module], checkpoint_path: str | os.PathLike[str], **options: Any) -> Module:
    """Do what ``module_class.load_from_checkpoint`` does, for checkpoints from before and after the switch."""

    class Reshaped(module_class):  # type: ignore[valid-type, misc]
        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            plan = plan_in(_state_in(checkpoint), self)
            if plan is not None:
                plan.reshape_(self)
            super().on_load_checkpoint(checkpoint)

    module: Any = Reshaped.load_from_checkpoint(checkpoint_path, **options)
    module.__class__ = module_class
    return module  # type: ignore[no-any-return]


def _state_in(checkpoint: dict[str, Any]) -> State | None:
    return checkpoint.get("callbacks", {}).get(STATE_KEY)  # type: ignore[no-any-return]


def _forget_best(trainer: Trainer, plan: Plan | None) -> None:
    """After the switch, look for the best anew: what was best before is another module's, which stays where it is."""
    if plan is None:
        return
    for callback in trainer.callbacks:
        worst = torch.tensor(-torch.inf if getattr(callback, "mode", "min") == "max" else torch.inf)
        if isinstance(callback, EarlyStopping):
            callback.best_score, callback.wait_count = worst, 0
        elif isinstance(callback, ModelCheckpoint) and callback.monitor is not None:  # otherwise the last is the best
            callback.best_k_models, callback.kth_value = {}, worst
            callback.best_model_score, callback.best_model_path, callback.kth_best_model_path = None, "", ""


def _check(trainer: Trainer) -> None:
    """Raise for what the switch cannot follow."""
    strategy, model = trainer.strategy, trainer.strategy.model
    plain = model is trainer.lightning_module or isinstance(model, DistributedDataParallel)
    if not plain or strategy.restore_checkpoint_after_setup:
        raise ConfigError(f"{type(strategy).__name__} is not supported: train on one device or with strategy='ddp'")
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        raise ConfigError(
            "the strategy trains in processes of its own (spawn, fork, notebook), from which only weights come back, "
            "for a module of the old shape: use strategy='ddp', which starts the script anew for every device"
        )
    if not trainer.optimizers:
        raise ConfigError("the module has no optimizer: return the one that trains it from configure_optimizers")
    for callback in trainer.callbacks:
        if any("WeightAveraging" in base.__name__ for base in type(callback).__mro__):
            raise ConfigError(f"{type(callback).__name__} averages weights that are replaced: leave it out")
    if any(getattr(callback, "save_weights_only", False) for callback in trainer.checkpoint_callbacks):
        raise ConfigError(
            "ModelCheckpoint(save_weights_only=True) writes no callback's state, so that the plan would be lost: "
            "leave that out, and use pcn.save for the small module alone"
        )
