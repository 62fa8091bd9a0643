"""Every schedule on the optimizer goes on as if nothing had happened, and so do its hooks and options."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler, swa_utils

import pcn
from switching.loop import CONFIG, convolutional, dense, images, step, vectors

STEPS, SWITCH = 12, 5
SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, [lambda n: (n + 1) / 9, lambda n: 0.9**n]),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.95),
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, STEPS),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(o, STEPS - 3)], [3]
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=[0.1, 0.2], total_steps=STEPS + 1),
    "cycle": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, factor=0.5),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=[0.01, 0.02], anneal_epochs=8),
}


def two_groups(model: torch.nn.Module, kind: type[Optimizer]) -> Optimizer:
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.05, "lr": 0.05},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0, "lr": 0.02},
    ]
    return SGD(groups, momentum=0.9) if kind is SGD else AdamW(groups)


def numbers_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """All that a group holds besides its parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


@pytest.mark.parametrize("kind", [SGD, AdamW])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_numbers_are_those_without_a_switch(name: str, kind: type[Optimizer]) -> None:
    seen: list[list[Any]] = [[], []]
    for switches, history in zip((True, False), seen, strict=True):
        torch.manual_seed(0)
        model = convolutional()
        optimizer = two_groups(model, kind)
        schedule = SCHEDULES[name](optimizer)
        for number in range(1, STEPS + 1):
            step(model, optimizer, images(number))
            if name == "plateau":
                schedule.step(1.0 if number > 3 else 1 / number)
            else:
                schedule.step()
            history.append(copy.deepcopy(numbers_of(optimizer)))
            if switches and number == SWITCH:
                pcn.Switch(model, optimizer, CONFIG).now([images(99)[0]])
                assert len(optimizer.param_groups[0]["params"]) == 3 + 2  # two layers gained a bias
    assert seen[0] == seen[1]


def test_hooks_stay_and_the_optimizer_is_the_same_object() -> None:
    model = dense()
    optimizer = AdamW(model.parameters())
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    groups, defaults = [id(group) for group in optimizer.param_groups], dict(optimizer.defaults)
    step(model, optimizer, vectors(0))
    pcn.Switch(model, optimizer, CONFIG).now([vectors(9)[0]])
    step(model, optimizer, vectors(1))
    assert called == ["before", "after"] * 2
    assert [id(group) for group in optimizer.param_groups] == groups
    assert optimizer.defaults == defaults


def test_a_gained_bias_has_the_decay_of_its_weights_group() -> None:
    model = convolutional()
    optimizer = two_groups(model, SGD)
    step(model, optimizer, images(0))
    pcn.Switch(model, optimizer, CONFIG).now([images(9)[0]])
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(model[0].bias)] == decay[id(model[0].weight)] == 0.05
    assert decay[id(model[9].bias)] == decay[id(model[1].weight)] == 0.0
