"""A run offers its switch to act when a step or an epoch has ended, and goes on with what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcn.plans.plan import Plan
from pcn.switching import Progress, Switch
from pcn.switching.rules import as_switch_rule
from pcn.training.looks import keep_spectra, look

if TYPE_CHECKING:
    from pcn.training.trainer import Trainer


def offer_at_start(run: Trainer) -> None:
    """Offer to switch before the first step, where the settings ask for no training before."""
    if run.switch is None or run.switch.begun or not as_switch_rule(run.switch.at).due(Progress()):
        return
    run.watch.lap()
    _follow(run, run.switch.after_epoch(0, run.calibration))
    run.watch.lap()  # switching is no training


def offer_after_epoch(run: Trainer, accuracy: float) -> None:
    """Offer to switch; not after the last epoch, when nothing would train what came of it."""
    run.watch.lap()
    seen = look(run)
    last = run.progress.epoch >= run.settings.epochs
    if run.switch is not None and (run.switch.begun or not last):
        plan = run.switch.after_epoch(run.progress.epoch, run.calibration, accuracy=accuracy, statistics=seen)
        if last and fading(run.switch):
            plan = run.switch.now(run.calibration)  # there is no step left in which the rest could fade
        _follow(run, plan)
    run.watch.lap()  # looking is no training


def offer_after_step(run: Trainer, switch: Switch) -> None:
    acts = _acts(run, switch)
    if acts:
        run.count_time()
    _follow(run, switch.after_step(run.progress.step, run.calibration))
    if acts:
        run.watch.lap()  # nor is switching


def fading(switch: Switch) -> bool:
    """Whether what the cut takes away is going, and the cut still to come."""
    return switch.begun and switch.plan is None


def fade_steps_left(run: Trainer) -> int:
    begin = run.progress.fade_step
    return 0 if run.switch is None or begin is None else begin + run.switch.fade - run.progress.step


def _acts(run: Trainer, switch: Switch) -> bool:
    """Whether the switch begins or ends after this step: to take the time after every one would hold up a GPU."""
    if switch.plan is not None:
        return False
    if switch.begun:
        return fade_steps_left(run) <= 0
    return as_switch_rule(switch.at).due(Progress(run.progress.epoch, run.progress.step))


def _follow(run: Trainer, plan: Plan | None) -> None:
    """Go on with what an offer to switch has led to, if to anything."""
    _begin_fade(run)
    if plan is not None:
        run.switched(plan)
    keep_spectra(run)


def _begin_fade(run: Trainer) -> None:
    """Write down when what the cut takes away begins to fade."""
    progress, switch = run.progress, run.switch
    if switch is not None and fading(switch) and progress.fade_step is None:
        progress.count_switch(run.watch.lap()[0])
        progress.fade_step = progress.step
        run.log("fade", seconds=progress.switch_seconds, steps=switch.fade)
