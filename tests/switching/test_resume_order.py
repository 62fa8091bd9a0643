"""In whatever order a run's saved states are loaded, no optimizer's state is lost without a word."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, Optimizer
from torch.utils._pytree import tree_flatten

import pcn
from switching.loop import CONFIG, dense, step, vectors

Make = Callable[[nn.Sequential], list[Optimizer]]
KINDS: dict[str, Make] = {
    "Adam": lambda model: [Adam(model.parameters())],
    "SGD": lambda model: [SGD(model.parameters(), lr=0.1, momentum=0.9)],
    "plain SGD": lambda model: [SGD(model.parameters(), lr=0.1)],
    "two": lambda model: [SGD(model[0].parameters(), lr=0.1, momentum=0.9), Adam(model[2:].parameters())],
    "weights and biases": lambda model: [
        SGD([p for p in model.parameters() if p.ndim == 2], lr=0.1, momentum=0.9),
        Adam([p for p in model.parameters() if p.ndim == 1]),
    ],
}


def parts(make: Make, *, config: pcn.PCNConfig = CONFIG, strict: bool = True) -> dict[str, Any]:
    torch.manual_seed(0)
    model = dense()
    optimizers = make(model)
    switch = pcn.Switch(model, optimizers, config, at=2, strict=strict)
    return {"model": model, "switch": switch} | {f"optimizer {n}": each for n, each in enumerate(optimizers)}


def trained(run: dict[str, Any], epochs: int, start: int = 0) -> dict[str, Any]:
    optimizers = [part for name, part in run.items() if name.startswith("optimizer")]
    for epoch in range(start + 1, start + epochs + 1):
        step(run["model"], optimizers, vectors(epoch))
        run["switch"].after_epoch(epoch, [vectors(99)[0]])
    return {name: part.state_dict() for name, part in run.items()}


def assert_same(found: Any, expected: Any) -> None:
    (ours, form), (theirs, same_form) = tree_flatten(found), tree_flatten(expected)
    assert form == same_form
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("kind", "done"), [*((kind, 3) for kind in KINDS), ("Adam", 1), ("two", 1)])
def test_a_run_is_resumed_in_any_order_that_its_model_can_be_loaded_in(kind: str, done: int) -> None:
    expected = trained(parts(KINDS[kind]), 5)
    saved = trained(parts(KINDS[kind]), done)
    for order in permutations(saved):
        if done > 2 and order.index("model") < order.index("switch"):
            continue  # torch refuses weights of another shape
        run = parts(KINDS[kind])
        for name in order:
            run[name].load_state_dict(copy.deepcopy(saved[name]))  # an optimizer goes on with the very tensors
        assert_same(trained(run, 5 - done, done), expected)


def test_state_of_the_model_as_it_was_built_goes_with_a_warning() -> None:
    saved = trained(parts(KINDS["Adam"]), 2)
    run = parts(KINDS["Adam"], strict=False)
    trained(run, 1)
    with pytest.warns(UserWarning, match=r"^Adam held state .* load the switch's state first, then the model's"):
        run["switch"].load_state_dict(saved["switch"])
    assert not run["optimizer 0"].state
    strict = parts(KINDS["Adam"])
    trained(strict, 1)
    with pytest.raises(pcn.PlanError, match="starts afresh"):
        strict["switch"].load_state_dict(saved["switch"])
    assert len(strict["optimizer 0"].state) == 6
    assert strict["switch"].plan is None


def test_state_that_may_be_of_either_coordinates_is_not_guessed_at() -> None:
    """With every direction kept, weights have the same shapes before and after."""
    whole = pcn.PCNConfig(rank=1.0, skip_larger=False)
    saved = trained(parts(KINDS["SGD"], config=whole), 2)
    run = parts(KINDS["SGD"], config=whole, strict=False)
    run["optimizer 0"].load_state_dict(saved["optimizer 0"])
    with pytest.warns(UserWarning, match="cannot be told to be that of their successors"):
        run["switch"].load_state_dict(saved["switch"])


def test_one_optimizers_state_does_not_vouch_for_that_of_another() -> None:
    """The first layer's weights change their shape, and those of the others, which Adam has, do not."""
    config = replace(CONFIG, layers={name: pcn.LayerRule(rank=1.0) for name in ("2", "4")})
    saved = trained(parts(KINDS["two"], config=config), 2)
    for strict in (False, True):
        run = parts(KINDS["two"], config=config, strict=strict)
        trained(run, 1)
        run["optimizer 0"].load_state_dict(copy.deepcopy(saved["optimizer 0"]))
        refused = pytest.raises(pcn.PlanError, match=r"^Adam held state")
        with refused if strict else pytest.warns(UserWarning, match=r"^Adam held state"):
            run["switch"].load_state_dict(saved["switch"])
        assert_same(run["optimizer 0"].state_dict()["state"], saved["optimizer 0"]["state"])
        assert bool(run["optimizer 1"].state) is strict
        assert (run["switch"].plan is None) is strict


def test_what_an_optimizer_is_made_with_is_no_loss() -> None:
    def made(model: nn.Sequential) -> list[Optimizer]:
        return [Adagrad(model.parameters(), initial_accumulator_value=0.1)]

    with pytest.warns(UserWarning, match="starts afresh"):  # at the switch itself
        saved = trained(parts(made, strict=False), 2)
    run = parts(made, strict=False)
    for name in ("switch", "model", "optimizer 0"):
        run[name].load_state_dict(saved[name])
    assert_same(run["optimizer 0"].state_dict(), saved["optimizer 0"])
