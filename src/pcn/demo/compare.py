"""Training the parent, its PCN and a narrower network by one recipe."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import nn

from pcn.config import PCNConfig
from pcn.costs.count import count, flops_per_sample
from pcn.demo.diary import Diary
from pcn.demo.digits import Digits, Images, load_digits
from pcn.demo.network import DigitsNetwork, width_of_size
from pcn.demo.recipe import Recipe, Training, accuracy_percent
from pcn.demo.results import NARROWER, PARENT, PCN, Comparison, Run, Switch
from pcn.plans.making import make_plan
from pcn.plans.plan import Plan
from pcn.statistics import Statistics, analyze

Report = Callable[[str], None]  # told after every epoch whose it was


def compare(recipe: Recipe, config: PCNConfig | None = None, report: Report = lambda network: None) -> Comparison:
    """Train the three networks once for every seed."""
    comparison = Comparison(recipe)
    for seed in range(recipe.first_seed, recipe.first_seed + recipe.seeds):
        _one_seed(comparison, load_digits(seed), seed, config or PCNConfig(), report)
    return comparison


def epochs_in_all(recipe: Recipe) -> int:
    """Return how often ``compare`` reports; the first epochs of parent and PCN are the same and run once."""
    return recipe.seeds * (3 * recipe.epochs - recipe.switch_after)


def _one_seed(comparison: Comparison, digits: Digits, seed: int, config: PCNConfig, report: Report) -> None:
    recipe = comparison.recipe
    start, rest = recipe.switch_after, recipe.epochs - recipe.switch_after
    diary = Diary(digits, config) if seed == recipe.first_seed else None
    comparison.diary = comparison.diary or diary
    torch.manual_seed(seed)
    parent = Training(DigitsNetwork(), recipe, seed)
    start_s = _train(parent, digits.train, start, lambda: report(PARENT), diary)
    small = copy.deepcopy(parent)

    rest_s = _train(parent, digits.train, rest, lambda: report(PARENT))
    comparison.runs[PARENT].append(_run(parent.model, digits, seed, start_s + rest_s))

    switch, stats, plan = _switch(small, digits, config)
    if diary is not None:
        diary.after_switch(parent, small, stats, plan)
    rest_s = _train(small, digits.train, rest, lambda: report(PCN), diary)
    comparison.switches.append(switch)
    comparison.runs[PCN].append(_run(small.model, digits, seed, start_s + switch.time_s + rest_s))

    torch.manual_seed(seed)
    width = width_of_size(count(small.model).trainable)
    narrower = Training(DigitsNetwork(width), recipe, seed)
    whole_s = _train(narrower, digits.train, recipe.epochs, lambda: report(NARROWER))
    comparison.runs[NARROWER].append(_run(narrower.model, digits, seed, whole_s))


def _switch(training: Training, digits: Digits, config: PCNConfig) -> tuple[Switch, Statistics, Plan]:
    """Look, plan and switch: the model in ``training`` becomes a PCN."""
    before = accuracy_percent(training.model, digits.validation)
    started = time.perf_counter()
    stats = analyze(training.model, digits.train.images.split(256))
    plan = make_plan(training.model, stats, config)
    plan.apply_(training.model, stats, optimizer=training.optimizer)
    time_s = time.perf_counter() - started
    after = accuracy_percent(training.model, digits.validation)
    return Switch(str(stats), str(plan), before, after, time_s), stats, plan


def _train(
    training: Training, data: Images, epochs: int, done: Callable[[], None], diary: Diary | None = None
) -> float:
    """Train for some epochs and return the seconds that took."""
    seconds = 0.0
    for _ in range(epochs):
        started = time.perf_counter()
        training.epoch(data)
        epoch_s = time.perf_counter() - started
        seconds += epoch_s
        done()
        if diary is not None:
            diary.after_epoch(training, epoch_s)
    return seconds


def _run(model: nn.Module, digits: Digits, seed: int, time_s: float) -> Run:
    cost = count(model)
    return Run(
        seed=seed,
        trainable=cost.trainable,
        total=cost.total,
        flops_per_sample=flops_per_sample(model, digits.test.images[:256]),
        validation_accuracy_percent=accuracy_percent(model, digits.validation),
        test_accuracy_percent=accuracy_percent(model, digits.test),
        time_s=time_s,
    )
