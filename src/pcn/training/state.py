"""Everything that a run would lose if its process ended now, taken out and put back."""

from __future__ import annotations

import copy
import random
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from pcn.training.optimizers import make_optimizer
from pcn.training.progress import RunProgress
from pcn.warn import warn

if TYPE_CHECKING:
    from pcn.training.trainer import Trainer


def take(run: Trainer) -> dict[str, Any]:
    """The whole state of a run, as tensors and plain values."""
    return {
        "progress": asdict(run.progress),
        "switch": None if run.switch is None else run.switch.state_dict(),
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "best": run.best,
        "random": run.world.ranks.gather(_random_state(run.device)),
    }


def put_back_(run: Trainer, state: dict[str, Any]) -> None:
    """Bring a run, newly made from the same settings, to a state that was taken, which others may start from too."""
    run.progress = RunProgress(**state["progress"])
    if run.switch is not None and state["switch"] is not None:
        run.switch.load_state_dict(state["switch"])  # gives model and optimizer the shape of what follows
        if run.switch.plan is not None and not run.settings.carry_state:
            run.optimizer = make_optimizer(run.model, run.settings, graphed=run.graphed)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it would go on with the very tensors given
    run.best = state["best"]
    _set_random_states(run, state["random"])


def _random_state(device: torch.device) -> dict[str, Any]:
    version, numbers, spare = random.getstate()
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"python": [version, list(numbers), spare], "torch": torch.get_rng_state(), "cuda": on_gpu}


def _set_random_states(run: Trainer, states: list[dict[str, Any]]) -> None:
    """Give each process its own; one that was not there keeps that of its seed."""
    rank, here, before = run.world.rank, run.world.size, len(states)
    if here != before and run.world.first:
        warn(
            f"this run was trained in {before} process{'es' if before > 1 else ''} and goes on in {here}: it will not "
            f"end as one that was never stopped, for which start it with {before}"
        )
    if rank < before:
        _set_random_state(states[rank], run.device)


def _set_random_state(state: dict[str, Any], device: torch.device) -> None:
    version, numbers, spare = state["python"]
    random.setstate((version, tuple(numbers), spare))
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
