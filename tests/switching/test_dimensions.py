"""Effective dimensions reach any logger, and looking at them changes nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import pcn
from pcn.switching import effective_dimensions, log_dimensions
from switching.loop import CONFIG, dense, step, vectors


class Run:
    """What Weights & Biases, trackio and others have in common."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)


class Tracking:
    """What MLflow and Lightning's loggers have in common."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))


def test_a_switch_tells_its_logger_until_it_has_switched() -> None:
    plans, logs = [], []
    for log in (None, Run()):
        torch.manual_seed(0)
        model = dense()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        switch = pcn.Switch(model, optimizer, CONFIG, at=3, log=log)
        for epoch in range(1, 5):
            step(model, optimizer, vectors(epoch))
            switch.after_epoch(epoch, [vectors(epoch)])
        plans.append((switch.plan, [p.detach().clone() for p in model.parameters()]))
        logs.append(log)
    assert plans[0][0] == plans[1][0]
    assert all(map(torch.equal, plans[0][1], plans[1][1]))
    assert logs[1] is not None
    assert [record["epoch"] for record in logs[1].logged] == [1, 2, 3]
    names = {f"effective_dimension/{name}" for name in plans[0][0].layers}
    assert logs[1].logged[0].keys() == {"epoch", *names}


def test_dimensions_are_what_the_rule_would_keep() -> None:
    model = dense()
    stats = pcn.analyze(model, [vectors(0)])
    rule = pcn.ExplainedVariance(0.8)
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=rule, skip_larger=False))
    assert effective_dimensions(stats, rule) == {layer.name: layer.rank for layer in plan.transformed}


def test_every_kind_of_logger_is_told(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, tracking, told = Run(), Tracking(), []
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for logger in (run, tracking, told.append, writer):
            log_dimensions(logger, 3, {"fc1": 42, "unknown": None})
    assert run.logged == told == [{"epoch": 3, "effective_dimension/fc1": 42}]
    assert tracking.logged == [(3, {"effective_dimension/fc1": 42.0})]
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("effective_dimension/fc1")] == [(3, 42.0)]
    with pytest.raises(pcn.ConfigError, match=r"give an object with log\(dict\)"):
        log_dimensions("wandb", 1, {"fc1": 2})


def test_python_s_own_loggers_are_refused_with_what_to_give() -> None:
    logger = logging.getLogger("pcn.test")
    for each in (logger, logging.LoggerAdapter(logger, {})):
        with pytest.raises(pcn.ConfigError, match=r"takes lines of text: give a function") as refused:
            log_dimensions(each, 1, {"fc1": 2})
        assert len(str(refused.value).splitlines()) == 1
