"""What a run trains with: its switch, its step, and how its weights lie in memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pcn.layers import transformable_layers
from pcn.nn import PCConv2d
from pcn.plans.plan import get_plan
from pcn.switching import Switch
from pcn.training.fusing import fuse_layers_
from pcn.training.looks import step_costs
from pcn.training.requests import analysis_options, pcn_config, requested
from pcn.training.step import Step
from pcn.training.switch_time import check_in_time, fade_steps, switch_rule

if TYPE_CHECKING:
    from pcn.training.trainer import Trainer


def switch_for(run: Trainer) -> Switch | None:
    """The switch that the settings ask for; None where there is to be none."""
    settings, rule = run.settings, switch_rule(run.settings)
    if rule is None:
        return None
    check_in_time(settings, rule, run.steps_per_epoch)
    config, wish = pcn_config(settings), requested(settings)
    config.check_names(name for name, _, _ in transformable_layers(run.model))
    switch = Switch(
        run.wrapped,
        run.optimizer if settings.carry_state else None,
        wish,
        at=rule,
        recalibrate=settings.recalibrate,
        fade=fade_steps(settings, run.steps_per_epoch),
        measured=step_costs(run, wish),
        analysis=analysis_options(settings, config),
        keep_statistics=run.folder is not None,  # for its spectra
    )
    switch.expect_epochs()
    return switch


def choose_forms_(run: Trainer, inputs: Tensor) -> None:
    """Have weights lie as they are fastest, and principal component layers run so, where that is worth a look."""
    lay_out_(run)
    began = time.monotonic()
    # On a CPU a narrow product and then the layer is the fastest in any case.
    chooses = run.fused or (run.compiled and run.device.type == "cuda")
    if chooses and (done := fuse_layers_(run.model, inputs, run.world.ranks, norms=run.fused)) is not None:
        run.log("fused", seconds=time.monotonic() - began, **done)
        if run.switch is not None and run.switch.plan is not None:  # so that a resumed run has the same forms
            run.switch.plan = get_plan(run.model)


def step_for(run: Trainer, inputs: Tensor, labels: Tensor) -> Step:
    """A training step of the network as it is now, compiled and captured where that was asked for."""
    return Step(
        run.wrapped,
        run.optimizer,
        inputs,
        labels,
        compiled=run.compiled,
        graphed=run.graphed,
        label_smoothing=run.settings.label_smoothing,
    )


def lay_out_(run: Trainer) -> None:
    """Have convolutions' channels last in memory, which they are fastest with, on a GPU and on a CPU."""
    layout = torch.channels_last if run.channels_last else torch.contiguous_format
    for module in run.model.modules():
        if isinstance(module, nn.Conv2d | PCConv2d) and module.weight.dim() == 4:  # patterns of taps have no layout
            module.weight.data = module.weight.data.contiguous(memory_format=layout)
