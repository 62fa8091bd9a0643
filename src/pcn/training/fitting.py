"""Whether model and data fit together: runs over a few samples before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pcn.errors import ConfigError
from pcn.running.example import Example
from pcn.running.failures import ONE_SAMPLE, is_of_one_sample
from pcn.running.outputs import called_logits
from pcn.running.untouched import untouched
from pcn.training.data import Contiguous, labels_end
from pcn.training.preparing import lay_out_
from pcn.training.step import autocast
from pcn.warn import warn

if TYPE_CHECKING:
    from pcn.training.trainer import Trainer


def check_data_fits(run: Trainer) -> None:
    """Raise when a model does not take the samples, or batches of them in train mode, or is no classifier of them.

    What takes them only without the channels last in memory goes without.
    """
    inputs, labels = next(run.data.validation())
    try:
        outputs = _outputs(run, inputs[:2])
    except Exception as error:
        inputs = inputs.contiguous()
        outputs = _outputs_in_order(run, inputs[:2], error)
    _check_classes(run, outputs, labels)
    _check_classes(run, _trained_outputs(run, inputs), labels)


def _outputs(run: Trainer, inputs: Tensor) -> Any:
    with untouched(run.model), autocast(run.device):
        return run.model(inputs)


def _outputs_in_order(run: Trainer, inputs: Tensor, error: Exception) -> Any:
    run.channels_last = False
    lay_out_(run)
    try:
        outputs = _outputs(run, inputs)
    except Exception:
        raise _unfit(run, inputs, error) from error
    warn(
        f"{run.settings.model} does not take channels that are last in memory, so it trains more slowly without; "
        f"Tensor.reshape takes what Tensor.view does not: {error}"
    )
    run.data = Contiguous(run.data)
    return outputs


def _trained_outputs(run: Trainer, inputs: Tensor) -> Any:
    """What the model puts out in train mode, for as many samples as a process has in a step."""
    own = run.settings.batch // run.world.size
    with untouched(run.model, "train"), autocast(run.device):
        run.model.train()
        try:
            return Example(inputs).with_samples(own).call(run.model)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if not is_of_one_sample(error):
                raise _unfit(run, inputs, error) from error
            share = "each process's share of " if run.world.size > 1 else ""
            raise ConfigError(
                f"{share}a batch of {run.settings.batch}{ONE_SAMPLE}give a batch of {2 * run.world.size} or more"
            ) from error


def _unfit(run: Trainer, inputs: Tensor, error: Exception) -> ConfigError:
    shape = tuple(inputs.shape[1:])
    return ConfigError(f"{run.settings.model} does not take samples of {run.settings.data}, of shape {shape}: {error}")


def _check_classes(run: Trainer, outputs: Any, labels: Tensor) -> None:
    """Raise unless there is a row of scores for each sample, and in it one for each label."""
    name, data, logits = run.settings.model, run.settings.data, called_logits(outputs)
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() != 2:
        given = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(outputs).__name__
        named = ", as by model_options architectures=...ForImageClassification" if name.startswith("hf:") else ""
        raise ConfigError(
            f"{name} puts out {given}: give a classifier{named}, whose output, or what that calls logits, is a row of "
            "scores for each sample"
        )
    # Not all data know their labels before they are read; those of a batch are known.
    classes = max(labels_end(labels), getattr(run.data, "outputs_needed", 0))
    if logits.shape[1] < classes:
        raise ConfigError(
            f"{name} has {logits.shape[1]} outputs, fewer than {data} has classes (labels go up to {classes - 1}): "
            f"build it with at least {classes}, by its model_options or a factory of your own"
        )
