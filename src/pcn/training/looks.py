"""Looking at a run on its way: effective dimensions after its epochs, and spectra for its report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pcn.config import PCNConfig
from pcn.errors import PCNError
from pcn.planner import Measured
from pcn.planner.budget import Budget
from pcn.planner.reachable import check_reachable
from pcn.planner.within import measure_first
from pcn.plans.ranks import stats_for
from pcn.running.example import Example
from pcn.statistics import Statistics, analyze
from pcn.switching.dimensions import dimension_rule, effective_dimensions
from pcn.training.requests import analysis_options, rank_text, requested
from pcn.training.spectra import spectra_of
from pcn.training.step import autocast

if TYPE_CHECKING:
    from pcn.training.trainer import Trainer


def look(run: Trainer) -> Statistics | None:
    """Measure the layers' inputs where that is due, write down what was seen and return it.

    A run goes on as it would without; what cannot be measured is written down with the reason. Once there is a plan
    there is nothing to see: a layer then reads as many directions as it was given.
    """
    every, planned = run.settings.measure_every, run.switch is not None and run.switch.begun
    if planned or every == 0 or run.progress.epoch % every:
        return None
    try:
        stats = _measured(run)
    except PCNError as error:
        run.log("dimensions", error=str(error))
        return None
    config = PCNConfig() if run.switch is None else run.switch.options
    own = replace(stats)  # what the switch finds next does not depend on what was asked here
    rule = dimension_rule(config)
    run.log("dimensions", rule=rank_text(rule), layers=effective_dimensions(stats_for(config, own), rule))
    if run.folder is not None:
        run.folder.write_spectra(spectra_of(own, epoch=run.progress.epoch, config=config))
    return stats


def keep_spectra(run: Trainer) -> None:
    """Write down what the switch has made its plan from, and let go of it: it may take more memory than a step."""
    switch = run.switch
    if run.folder is not None and switch is not None and switch.statistics is not None:
        found = spectra_of(switch.statistics, switch.planned, run.progress.epoch, config=switch.options)
        run.folder.write_spectra(found)
        switch.statistics = None


def step_costs(run: Trainer, wish: PCNConfig | Budget) -> Measured | None:
    """Measure what a step of each process takes, where a budget asks; one that cannot be met is refused at once.

    A resumed run goes on with what was measured when it began.
    """
    if not isinstance(wish, Budget) or not wish.measures:
        return None
    own = replace(wish, batch=-(-run.settings.batch // run.world.size))

    def measure() -> Measured | None:
        if run.folder is not None and (earlier := run.folder.costs()) is not None:
            return earlier
        with autocast(run.device):
            found = measure_first(run.model, next(iter(run.calibration()), None), own)
        if run.folder is not None and found is not None:
            run.folder.write_costs(found)
        return found

    return run.world.ranks.from_one(measure)


def check_operations(run: Trainer) -> None:
    """Refuse a budget of operations that no ranks could meet, before the first step; samples must fit the model."""
    wish = requested(run.settings) if run.switch is not None and run.switch.plan is None else None
    if not isinstance(wish, Budget) or wish.flops is None:
        return

    def check() -> None:
        batch = next(iter(run.calibration()))
        check_reachable(run.model, wish, example=Example.of(batch, device=run.device))

    run.world.ranks.from_one(check)


def _measured(run: Trainer) -> Statistics:
    if run.switch is not None:
        return run.switch.look(run.calibration)
    options = analysis_options(run.settings, PCNConfig())
    return analyze(run.wrapped, run.calibration(), group=run.world.ranks.group, **options)
