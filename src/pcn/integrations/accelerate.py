"""The switch in a loop that Accelerate prepares and checkpoints."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pcn.errors import ConfigError, FileError, PCNError
from pcn.integrations.callback_switch import plan_in, warn_if_whole, write_plan
from pcn.layers import unwrap
from pcn.running.optimizers import as_optimizers
from pcn.switching import Switch

try:
    from accelerate import Accelerator, DistributedType
except ImportError as error:
    raise PCNError("this needs Accelerate, which is not installed: pip install accelerate") from error

FILE = "pcn_switch.bin"
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


def prepare_switch(accelerator: Accelerator, switch: Switch) -> Switch:
    """Return the switch for a prepared model and its optimizers, which ``save_state`` and ``load_state`` then include.

    A state saved after the switch loads into a model and optimizers that were built and prepared as usual. What
    ``save_model`` writes after the switch holds the plan besides, for ``pcn.load(model, folder)``. ``end_training``
    warns where the switch never came.
    """
    if accelerator.distributed_type in SHARDED:
        raise ConfigError(f"{accelerator.distributed_type} is not supported: train on one device or with plain DDP")
    if not any(unwrap(switch.model) is unwrap(model) for model in accelerator._models):
        raise ConfigError("the switch holds a model that Accelerate does not: give it the one that prepare returned")
    switch = replace(switch, optimizer=as_optimizers(switch.optimizer) or None)

    def save(models: list[Any], weights: list[Any], folder: str) -> None:
        accelerator.save(switch.state_dict(), Path(folder) / FILE)

    def load(models: list[Any], folder: str) -> None:
        path = Path(folder) / FILE
        if not path.exists():
            raise FileError(f"{folder} has no {FILE}: it was saved without the switch; give a folder saved with it")
        state = read_state(path)
        plan_in({"switch": state}, switch.model)  # raises for a state from before the switch that is behind this model
        switch.load_state_dict(state)

    save_model, end_training = accelerator.save_model, accelerator.end_training

    def save_with_plan(model: nn.Module, save_directory: str | os.PathLike[str], *args: Any, **options: Any) -> None:
        save_model(model, save_directory, *args, **options)
        if accelerator.is_main_process:
            write_plan(model, Path(save_directory))

    def end_with_a_word() -> None:
        if accelerator.is_main_process:
            warn_if_whole(switch)
        end_training()

    accelerator.save_model, accelerator.end_training = save_with_plan, end_with_a_word
    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)  # before the weights, which need the plan's shape
    return switch


def read_state(path: Path) -> dict[str, Any]:
    """Read what a switch has written beside a checkpoint."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]
    except Exception as error:
        raise FileError(
            f"{path} is damaged, as of a run that was stopped while it wrote; take the checkpoint before it"
        ) from error
