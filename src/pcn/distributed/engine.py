"""What a switch has to do with processes: the same plan on all of them, and the wrapper follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from pcn.collectives import Ranks
from pcn.distributed.agreement import check_agreement, check_parameters_agree, differing, digests
from pcn.distributed.ddp import check_rewrappable, ignore_bases_, rewrap_, sync_buffers_
from pcn.distributed.plans import Made, agree_on_directions, agree_on_plan, apply_together_
from pcn.errors import ConfigError
from pcn.layers import unwrap, wrapper_of
from pcn.planner.budget import Budget
from pcn.planner.tap_shares import tap_directions
from pcn.plans.plan import Plan
from pcn.rewriting.bases import Bases
from pcn.rewriting.patterns import measure_taps, patterned, with_patterns
from pcn.rewriting.surgery import reshape_, try_plan
from pcn.rewriting.taps import TapMoments, look_at_taps
from pcn.running.example import Example
from pcn.running.optimizers import Optimizers
from pcn.running.refusals import check_whole
from pcn.statistics import Statistics

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Engine:
    """The processes that train a model together (one by default), and the wrapper by which they do it."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizers, ema: nn.Module | None, group: ProcessGroup | None
    ) -> None:
        self.model, self.optimizer, self.ema = model, optimizer, ema
        self.ddp = wrapper_of(model)
        if group is None and self.ddp is not None:
            group = self.ddp.process_group
        self.ranks = Ranks(group)
        self.check()
        if self.ddp is not None:
            ignore_bases_(self.ddp)  # the model may have been switched before it was wrapped

    def check(self) -> None:
        """Raise for what cannot be followed, or would be followed by one process only."""
        check_whole(self.model, self.optimizer)
        if self.ddp is not None:
            check_rewrappable(self.ddp)
        if self.ranks.group is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise ConfigError(
                f"{dist.get_world_size()} processes run, but the model is not in DistributedDataParallel: give the "
                "wrapped model, or group=torch.distributed.group.WORLD, so that all of them switch alike"
            )

    def check_steps_alike(self) -> None:
        """Raise where ranks do as many steps as each has batches: a switch needs all of them at the same one."""
        if self.ddp is not None and self.ddp._join_config.enable:
            raise ConfigError(
                "inside model.join() one rank may be done when another comes to the step at which to switch, or at "
                "which fading ends: switch after an epoch (at=...), without fade, and call after_epoch outside of it"
            )

    def sync_buffers_(self) -> None:
        if self.ddp is not None:
            sync_buffers_(self.ddp, self.ranks)

    def before_switch_(self) -> set[str]:
        """Make sure that all ranks hold the same parameters; returns the names of what else is each rank's own."""
        self.ranks.together(self.check)
        if self.ranks.size == 1:
            return set()
        self.sync_buffers_()
        different = differing(self.ranks, self._digests())
        own = set() if self.ddp is None else {name.replace("_orig_mod.", "") for name in self.ddp.parameters_to_ignore}
        check_parameters_agree(different, own)
        return different

    def look_at_taps(self, stats: Statistics, budget: Budget) -> TapMoments:
        """Have all ranks measure what a budget has to know that chooses how many patterns of taps there are."""
        base = unwrap(self.model)
        along = agree_on_directions(
            lambda: tap_directions(base, stats, budget), base, self.ranks, self._planning_rank(stats)
        )
        return self._added_up(lambda: look_at_taps(base, stats, along))

    def agree(self, make: Callable[[], Made], stats: Statistics | None) -> Made:
        """Have one rank make the plan and its bases, for all, and all of them measure patterns of taps."""
        source = self._planning_rank(stats)
        plan, bases = agree_on_plan(make, self.model, self.ranks, source)
        if stats is None or not patterned(plan):
            return plan, bases
        base = unwrap(self.model)
        moments = self._added_up(lambda: measure_taps(plan, bases, base, stats))
        return agree_on_plan(lambda: (plan, with_patterns(plan, bases, moments, base)), self.model, self.ranks, source)

    def _planning_rank(self, stats: Statistics | None) -> int:
        """The first rank that has a batch; the very first, if none has."""
        has_one = self.ranks.gather(stats is not None and stats.example is not None)
        return has_one.index(True) if any(has_one) else 0

    def _added_up(self, look: Callable[[], TapMoments]) -> TapMoments:
        """What all ranks see, each on its own batch: a model that runs may wait for the others."""
        moments = self.ranks.together(look)
        for each in moments.values():
            self.ranks.sum_(each)
        return moments

    def try_(self, plan: Plan, bases: Bases, example: Example | None, *, strict: bool) -> None:
        """Raise on every rank what applying a plan would raise on one."""
        base = unwrap(self.model)
        self.ranks.together(
            lambda: try_plan(plan, base, bases, example=example, optimizer=self.optimizer, strict=strict)
        )

    def apply_(
        self, make: Callable[[], Made], stats: Statistics | None, *, strict: bool, then: Callable[[], None]
    ) -> Plan:
        """Have one rank make the plan, and all apply it, or none where ``then`` raises on the changed model."""
        plan, bases = self.agree(make, stats)
        base, example = unwrap(self.model), None if stats is None else stats.example
        options = {"example": example, "optimizer": self.optimizer, "ema": self.ema, "strict": strict}

        def change() -> None:
            apply_together_(plan, base, bases, self.ranks, then, **options)
            if self.ddp is not None:
                rewrap_(self.ddp)

        self.ranks.together(change)
        return plan

    def after_switch(self, before: set[str]) -> None:
        """Make sure that ranks agree on all on which they agreed before, and on all that is new."""
        if self.ranks.size > 1:
            check_agreement(differing(self.ranks, self._digests()), before)

    def reshape_(self, plan: Plan, *, strict: bool) -> None:
        """Give model, optimizers and averaged copy a plan's shape, for their saved states to be loaded."""
        devices = {parameter.device for parameter in self.model.parameters() if parameter.is_cuda}
        with torch.random.fork_rng(devices=devices):  # fresh weights that are overwritten cost no random numbers
            reshape_(plan, unwrap(self.model), optimizer=self.optimizer, ema=self.ema, strict=strict)
        if self.ddp is not None:
            rewrap_(self.ddp)

    def _digests(self) -> dict[str, str]:
        averaged = {} if self.ema is None else digests(self.ema)
        return digests(self.model, self.optimizer) | {f"averaged {name}": hash for name, hash in averaged.items()}
