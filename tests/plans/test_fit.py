"""Statistics of another model are refused at once, wherever they are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

import pcn
from pcn.plans.plan import Plan
from pcn.statistics import Statistics
from small import Mlp, Residual, vectors

CONFIG = pcn.PCNConfig(rank=2)
USES: dict[str, Callable[[Statistics], object]] = {
    "a plan": lambda stats: pcn.make_plan(Mlp(), stats, CONFIG),
    "a plan that leaves all alone": lambda stats: pcn.make_plan(Mlp(), stats, pcn.PCNConfig(rank=None)),
    "a budget": lambda stats: pcn.make_plan(Mlp(), stats, pcn.Budget(params=0.6)),
    "ranks for a budget": lambda stats: pcn.fit_budget(Mlp(), stats, pcn.Budget(params=0.6)),
    "applying": lambda stats: plan().apply_(Mlp(), stats),
    "the switch": lambda stats: pcn.Switch(Mlp(), None, CONFIG, at=9).after_epoch(1, [], statistics=stats),
}


def plan() -> Plan:
    return pcn.make_plan(Mlp(), None, CONFIG)


@pytest.mark.parametrize("use", USES)
def test_statistics_of_other_widths_or_names_are_refused(use: str) -> None:
    with pytest.raises(pcn.PlanError, match=r"'fc2' are of 30 inputs .* the layer has 24 .* analyze this model itself"):
        USES[use](pcn.analyze(Mlp(30), [vectors()]))
    with pytest.raises(pcn.PlanError, match=r"a layer 'stem' and others .* not have; analyze this model itself"):
        USES[use](pcn.analyze(Residual(), [vectors()]))


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("given", ["stats.safetensors", [vectors()]])
def test_what_are_no_statistics_is_refused(use: str, given: object) -> None:
    with pytest.raises(pcn.ConfigError, match=rf"stats is of type {type(given).__name__}: give what pcn.analyze"):
        USES[use](given)


def test_statistics_of_some_layers_only_still_do() -> None:
    stats = pcn.analyze(Mlp(), [vectors()], layers="fc2")
    assert pcn.make_plan(Mlp(), stats, CONFIG).layers["fc1"].reason == "not among the layers asked for"


def test_a_head_that_was_taken_off_is_not_missed() -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    stats = pcn.analyze(model, [vectors()])
    model[4] = nn.Identity()
    assert pcn.make_plan(model, stats, CONFIG).transformed
