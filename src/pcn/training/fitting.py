"""Whether model and data fit together: one run over two samples before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from pcn.errors import ConfigError
from pcn.running.untouched import untouched
from pcn.training.data import Contiguous, labels_end
from pcn.training.preparing import lay_out_
from pcn.training.step import autocast
from pcn.warn import warn

if TYPE_CHECKING:
    from pcn.training.trainer import Trainer


def check_fits(run: Trainer) -> None:
    """Raise when a model does not take the samples, or has fewer outputs than they have classes.

    What takes them only without the channels last in memory goes without.
    """
    inputs, labels = next(run.data.validation())
    try:
        outputs = _outputs(run, inputs)
    except Exception as error:
        outputs = _outputs_in_order(run, inputs, error)
    _check_classes(run, outputs, labels)


def _outputs(run: Trainer, inputs: Tensor) -> Any:
    with untouched(run.model), autocast(run.device):
        return run.model(inputs[:2])


def _outputs_in_order(run: Trainer, inputs: Tensor, error: Exception) -> Any:
    run.channels_last = False
    lay_out_(run)
    try:
        outputs = _outputs(run, inputs.contiguous())
    except Exception:
        shape = tuple(inputs.shape[1:])
        raise ConfigError(
            f"{run.settings.model} does not take samples of {run.settings.data}, of shape {shape}: {error}"
        ) from error
    warn(
        f"{run.settings.model} does not take channels that are last in memory, so it trains more slowly without; "
        f"Tensor.reshape takes what Tensor.view does not: {error}"
    )
    run.data = Contiguous(run.data)
    return outputs


def _check_classes(run: Trainer, outputs: Any, labels: Tensor) -> None:
    """Raise when a label has no output of its own; outputs that are no rows of scores, and other labels, may be."""
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        return
    # Not all data know their labels before they are read; those of a batch are known.
    classes = max(labels_end(labels), getattr(run.data, "outputs_needed", 0))
    if outputs.shape[1] < classes:
        raise ConfigError(
            f"{run.settings.model} has {outputs.shape[1]} outputs, fewer than {run.settings.data} has classes (labels "
            f"go up to {classes - 1}): build it with at least {classes}, by its model_options or a factory of your own"
        )
