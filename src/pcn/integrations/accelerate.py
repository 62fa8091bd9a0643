"""The switch in a loop that Accelerate prepares and checkpoints."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from pcn.errors import ConfigError, FileError, PCNError
from pcn.integrations.callback_switch import loading_optimizers, plan_in, warn_if_whole, write_plan
from pcn.layers import unwrap
from pcn.plans.plan import get_plan
from pcn.running.optimizers import as_optimizers
from pcn.switching import Switch

try:
    from accelerate import Accelerator, DistributedType
except ImportError as error:
    raise PCNError("this needs Accelerate, which is not installed: pip install accelerate") from error

FILE = "pcn_switch.bin"
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


class Held(NamedTuple):
    """A switch whose model an accelerator holds: the file for its state, and the model's place among those prepared."""

    switch: Switch
    file: str
    place: int


PREPARED: WeakKeyDictionary[Accelerator, list[Switch]] = WeakKeyDictionary()


def prepare_switch(accelerator: Accelerator, switch: Switch) -> Switch:
    """Return the switch for a prepared model and its optimizers, which ``save_state`` and ``load_state`` then include.

    A state saved after the switch loads into a model and optimizers that were built and prepared as usual. What
    ``save_model`` writes after the switch holds the plan besides, for ``pcn.load(model, folder)``, and its weights in
    one file of safetensors. ``end_training`` warns where the switch never came. Several models each have a switch of
    their own; whoever loads a state prepares them in the same order.
    """
    if accelerator.distributed_type in SHARDED:
        raise ConfigError(f"{accelerator.distributed_type} is not supported: train on one device or with plain DDP")
    if _place(accelerator, switch) is None:
        raise ConfigError("the switch holds a model that Accelerate does not: give it the one that prepare returned")
    if any(unwrap(held.switch.model) is unwrap(switch.model) for held in _held(accelerator)):
        raise ConfigError("this model has a switch already: prepare one for every model, once")
    switch = replace(switch, optimizer=as_optimizers(switch.optimizer) or None)
    if accelerator not in PREPARED:
        _include_switches(accelerator)
    PREPARED.setdefault(accelerator, []).append(switch)
    return switch


def _place(accelerator: Accelerator, switch: Switch) -> int | None:
    """Where a switch's model stands among the accelerator's, which numbers their files so."""
    places = [n for n, model in enumerate(accelerator._models) if unwrap(model) is unwrap(switch.model)]
    return places[0] if places else None


def _held(accelerator: Accelerator) -> list[Held]:
    """The switches in the order of preparation, without those of models that ``free_memory`` has let go."""
    places = [(switch, _place(accelerator, switch)) for switch in PREPARED.get(accelerator, [])]
    held = [(switch, place) for switch, place in places if place is not None]
    stem, suffix = Path(FILE).stem, Path(FILE).suffix
    return [Held(switch, f"{stem}_{n}{suffix}" if n else FILE, place) for n, (switch, place) in enumerate(held)]


def _include_switches(accelerator: Accelerator) -> None:
    """Have an accelerator save, load and mention the switches that are, or will be, prepared for it."""
    save_model, end_training, load_state = accelerator.save_model, accelerator.end_training, accelerator.load_state

    def save(models: list[Any], weights: list[Any], folder: str) -> None:
        for held in _held(accelerator):
            accelerator.save({**held.switch.state_dict(), "place": held.place}, Path(folder) / held.file)

    def load(models: list[Any], folder: str) -> None:
        states = [(held.switch, _own_state(held, Path(folder))) for held in _held(accelerator)]
        for switch, state in states:  # all of them are read, and may be refused, before anything changes
            switch.load_state_dict(state)

    def load_state_or_say_why(*args: Any, **options: Any) -> None:
        models = [held.switch.model for held in _held(accelerator)]
        with loading_optimizers(models, made_switched=any(get_plan(model) is not None for model in models)):
            load_state(*args, **options)

    def save_with_plan(model: nn.Module, save_directory: str | os.PathLike[str], *args: Any, **options: Any) -> None:
        if get_plan(model) is None:
            save_model(model, save_directory, *args, **options)
        else:
            save_model(model, save_directory, max_shard_size=sys.maxsize)  # one file, as pcn.load reads no other
        if accelerator.is_main_process:
            write_plan(model, Path(save_directory))

    def end_with_a_word() -> None:
        if accelerator.is_main_process:
            for held in _held(accelerator):
                warn_if_whole(held.switch)
        end_training()

    accelerator.save_model, accelerator.end_training = save_with_plan, end_with_a_word
    accelerator.load_state = load_state_or_say_why
    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)  # before the weights, which need the plan's shape


def _own_state(held: Held, folder: Path) -> dict[str, Any]:
    """Read the state that this switch has saved; raise where it is another's, or cannot be loaded into this model."""
    path = folder / held.file
    if not path.exists():
        raise FileError(f"{folder} has no {held.file}: it was saved without the switch; give a folder saved with it")
    state = read_state(path)
    if state.get("place", held.place) != held.place:
        raise FileError(
            f"{path} is the state of another model's switch (number {state['place']} of those prepared, and this one's "
            f"is number {held.place}): prepare models and switches in the order in which they were when it was saved"
        )
    plan_in({"switch": state}, held.switch.model)  # raises for a state from before the switch that is behind this model
    return state


def read_state(path: Path) -> dict[str, Any]:
    """Read what a switch has written beside a checkpoint."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]
    except Exception as error:
        raise FileError(
            f"{path} is damaged, as of a run that was stopped while it wrote; take the checkpoint before it"
        ) from error
