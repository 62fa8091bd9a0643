"""A run that was saved and taken up again ends as one that was never interrupted, bit for bit."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._pytree import tree_flatten

import pcn
from pcn.switching import SwitchRule
from switching.loop import CONFIG, convolutional, images, step

EPOCHS = 5
CALIBRATION = [images(100 + n)[0] for n in range(3)]
RULES: dict[str, int | SwitchRule] = {
    "epoch": 3,
    "step": pcn.AfterStep(10),
    "accuracy": pcn.AccuracySlows(),
    "subspaces": pcn.SubspacesSettle(within=0.5),
}
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
}


def optimizers_of(model: nn.Module, kinds: str) -> list[Optimizer]:
    """An optimizer of every kind in "SGD, AdamW": the last one takes all but the layers that those before it take."""
    *firsts, last = (OPTIMIZERS[kind] for kind in kinds.split(", "))
    children = list(model)
    made = [kind(children[n].parameters(), **options) for n, (kind, options) in enumerate(firsts)]
    rest = [parameter for child in children[len(firsts) :] for parameter in child.parameters()]
    return [*made, last[0](rest, **last[1])]


class Run:
    """All that a training script holds: model, optimizers, schedules, averaged copy, switch and random numbers."""

    def __init__(self, optimizer: str, rule: int | SwitchRule, recalibrate: bool = False) -> None:
        torch.manual_seed(0)
        self.model = convolutional(dropout=0.2)
        self.optimizers = optimizers_of(self.model, optimizer)
        self.schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, EPOCHS * 4) for each in self.optimizers]
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        self.switch = pcn.Switch(
            self.model, self.optimizers, CONFIG, at=rule, ema=self.ema, recalibrate=recalibrate, strict=True
        )
        self.switched_after: list[tuple[int, int]] = []

    def epoch(self, number: int) -> None:
        self.model.train()
        for position, seed in enumerate(torch.randperm(4).tolist()):
            step(self.model, self.optimizers, images(seed))
            for schedule in self.schedules:
                schedule.step()
            self.ema.update_parameters(self.model)
            done = 4 * (number - 1) + position + 1
            self._note(self.switch.after_step(done, CALIBRATION), number, done)
        accuracy = 1 - 0.5**number if number < 3 else 0.75
        self._note(self.switch.after_epoch(number, lambda: CALIBRATION, accuracy=accuracy), number, 4 * number)

    def _note(self, plan: pcn.Plan | None, epoch: int, steps: int) -> None:
        if plan is not None:
            self.switched_after.append((epoch, steps))

    def parts(self) -> dict[str, Any]:
        several = {f"optimizer {n}": each for n, each in enumerate(self.optimizers)}
        several |= {f"schedule {n}": each for n, each in enumerate(self.schedules)}
        return {"switch": self.switch, "model": self.model, "ema": self.ema, **several}

    def save(self) -> bytes:
        states = {name: part.state_dict() for name, part in self.parts().items()}
        file = io.BytesIO()
        torch.save({**states, "random": torch.get_rng_state()}, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        states = torch.load(io.BytesIO(saved), weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(states[name])
        torch.set_rng_state(states["random"])


@pytest.mark.parametrize(
    ("optimizer", "rule", "recalibrate"),
    [("SGD", rule, recalibrate) for rule in RULES for recalibrate in (False, True)]
    + [("Adam", "epoch", False), ("Adam", "subspaces", True), ("AdamW", "step", False), ("AdamW", "epoch", True)]
    + [("SGD, AdamW", "epoch", False), ("Adam, SGD, AdamW", "step", True)],
)
def test_a_resumed_run_ends_as_one_never_interrupted(optimizer: str, rule: str, recalibrate: bool) -> None:
    whole = Run(optimizer, RULES[rule], recalibrate)
    saved = []
    for number in range(1, EPOCHS + 1):
        whole.epoch(number)
        saved.append(whole.save())
    assert len(whole.switched_after) == 1
    assert 1 < whole.switched_after[0][0] < EPOCHS
    for done in range(1, EPOCHS):
        resumed = Run(optimizer, RULES[rule], recalibrate)
        resumed.load(saved[done - 1])
        for number in range(done + 1, EPOCHS + 1):
            resumed.epoch(number)
        assert_same(resumed.save(), saved[-1])
        assert resumed.switched_after == [at for at in whole.switched_after if at[0] > done]


def assert_same(found: bytes, expected: bytes) -> None:
    states = [tree_flatten(torch.load(io.BytesIO(saved), weights_only=True)) for saved in (found, expected)]
    assert states[0][1] == states[1][1]
    for one, other in zip(states[0][0], states[1][0], strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_loading_a_switch_draws_no_random_numbers() -> None:
    run = Run("SGD", 1)
    run.epoch(1)
    state = run.switch.state_dict()
    fresh = Run("SGD", 1)
    before = torch.get_rng_state()
    fresh.switch.load_state_dict(state)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_from_before_the_switch_does_not_fit_a_switched_model() -> None:
    model, batches = convolutional(), [images(9)[0]]
    switch = pcn.Switch(model, None, CONFIG)
    before = switch.state_dict()
    switch.now(batches)
    with pytest.raises(pcn.PlanError, match="from before the switch"):
        switch.load_state_dict(before)
