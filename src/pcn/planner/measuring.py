"""Measuring what a training step takes: the model as it is, and every layer alone in some of its forms."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pcn.costs.kept import Kept
from pcn.costs.timing import model_step_ns
from pcn.costs.usage import Usage
from pcn.errors import ConfigError
from pcn.layers import transformable_layers, unwrap
from pcn.planner.measured import Measured
from pcn.planner.trials import Trials, bytes_of_tensors
from pcn.plans.plan import check_untransformed
from pcn.running.example import Example, Forward, device_of
from pcn.running.failures import saying_which
from pcn.running.untouched import untouched

if TYPE_CHECKING:
    from pcn.planner.budget import Budget

ONE_BATCH = "give one batch, and forward=lambda model, batch: ... where the model is called otherwise"


def measure_costs(
    model: nn.Module, batch: Any, budget: Budget | None = None, *, forward: Forward | None = None, times: bool = True
) -> Measured:
    """Measure what a training step takes on the model's device, forward and backward, as a whole and layer by layer.

    The batch reaches the model by the rules of :func:`pcn.analyze`; autocast counts as it is where this is called.
    The ``budget`` says in which steps of rank, for which optimizer and how many samples; without ``times`` only memory
    is measured. The optimizer's own step takes time too, which is not counted.

    >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    >>> measured = measure_costs(model, torch.ones(32, 64), times=False)
    >>> measured.whole.activations_bytes == 4 * 32 * (64 + 256)  # what the two linear layers read
    True
    """
    base = unwrap(model)
    check_untransformed(base)
    trials = Trials.of(budget, times)
    device = device_of(base)
    if device is None or device.type == "meta":
        raise ConfigError("the model has no weights on a device: there is nothing to measure")
    example = Example.for_model(base, batch, forward).copied()
    if budget is not None and budget.batch is not None:
        example = example.with_samples(budget.batch)
    layers = {
        name: module
        for name, module, reason in transformable_layers(base)
        if reason is None and trials.config.excludes(name) is None
    }
    with untouched(base, "train"), torch.enable_grad():
        _train_alone(base)
        wanted = [parameter for parameter in base.parameters() if parameter.requires_grad]
        kept = Kept.beside((*base.parameters(), *base.buffers()))
        on_batch = saying_which("the batch in train mode", example, give=ONE_BATCH)
        with on_batch, kept.layers_named(layers), kept.watched():
            example.run(base)
        kept.held.clear()
        whole = bytes_of_tensors(base, trials.state) + Usage(activations_bytes=kept.total_bytes)
        # Twice, with the layers between: other work on the machine should not look like work of the model.
        began = model_step_ns(lambda: example.run(base), wanted, device) if times else 0
        found = {name: trials.layer(name, layers[name], kept) for name in kept.reads}
        ended = model_step_ns(lambda: example.run(base), wanted, device) if times else 0
        whole += Usage(time_ns=min(began, ended))
    levelled = Measured.levelled(whole, found, f"{example} on {device}")
    return replace(levelled, looked_at=tuple(layers), state=trials.state)


def _train_alone(model: nn.Module) -> None:
    """Put a model into training mode, but for norms that would wait for other processes."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm):
            module.eval()
