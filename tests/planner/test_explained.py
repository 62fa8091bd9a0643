"""What a plan says that the next step would have bought."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pcn
from pcn.costs.usage import MIB, Usage
from pcn.planner.allocation import Served
from pcn.planner.explained import with_next_step
from pcn.planner.measured import LayerUsage, Measured
from pcn.planner.options import Option
from pcn.plans.layer_plan import LayerPlan

LAYER = LayerPlan("fc", "linear", 64, 64, rank=8)


def said(now: Option, following: Option | None, layer: LayerPlan = LAYER) -> str | None:
    return with_next_step(layer, Served(now, following, 4)).note


def test_more_is_more_than_now() -> None:
    now, following = Option(8, None, {"params": 100}, 0.5), Option(16, None, {"params": 150}, 0.75)
    assert said(now, following) == "rank 16 would be worth 50.00% more, for 50 parameters"
    assert said(now, None) is None


def test_what_is_worth_nothing_has_no_share_to_add() -> None:
    assert said(Option(8, None, {"params": 100}, 0.0), Option(16, None, {"params": 150}, 0.75)) is None


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ({"params": 9_000, "flops": 20_000}, "for 1,000 parameters and 2,000 FLOPs"),
        ({"params": 7_212, "flops": 34_768}, "saving 788 parameters, for 16,768 FLOPs"),
        ({"params": 8_000, "flops": 34_768}, "for 16,768 FLOPs"),
    ],
)
def test_what_a_step_saves_is_not_a_negative_price(costs: dict[str, int], words: str) -> None:
    now = Option(8, None, {"params": 8_000, "flops": 18_000}, 0.5)
    assert said(now, Option(None, None, costs, 1.0)) == f"all of it would be worth 100.00% more, {words}"


def test_what_was_said_before_stays() -> None:
    now, following = Option(8, None, {"params": 100}, 0.5), Option(16, 4, {"params": 150}, 0.75)
    words = "few; rank 16 with 4 trained outputs would be worth 50.00% more, for 50 parameters"
    assert said(now, following, LAYER.with_note("few")) == words


def test_a_layer_that_stays_whole_for_time_or_memory_is_not_said_to_have_no_smaller_form() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    stats = pcn.analyze(model, [torch.randn(256, 32)])
    sizes = {"0": (32, 10, 5), "2": (64, 10, 12), "4": (64, 1, 1)}  # inputs, and what it takes whole and with a basis
    layers = {
        name: LayerUsage(
            Usage(activations_bytes=whole * MIB, time_ns=whole * 10**6),
            {(rank, None): Usage(activations_bytes=cut * MIB, time_ns=cut * 10**6) for rank in (8, width)},
        )
        for name, (width, whole, cut) in sizes.items()
    }
    measured = Measured(Usage(), layers)

    def reasons(budget: pcn.Budget) -> dict[str, str | None]:
        plan = pcn.make_plan(model, stats, budget, measured=measured)
        return {layer.name: layer.reason for layer in plan.layers.values()}

    none = "no form of it would be smaller and no slower"
    stepped = f"{none}, in steps of 8 directions"  # with fewer there are some
    expected = {"0": None, "2": "any smaller form of it would take more memory than now", "4": stepped}
    assert reasons(pcn.Budget(memory_mib=0.8)) == expected
    assert reasons(pcn.Budget(step_ms=0.8))["2"] == "any smaller form of it would take more time than now"
    both = reasons(pcn.Budget(step_ms=0.8, memory_mib=0.8))["2"]
    assert both == "any smaller form of it would take more time or memory than now"
    kept = f"{none}, with floor=0.6 of its directions"
    assert reasons(pcn.Budget(params=1.0, floor=0.6)) == {"0": kept, "2": kept, "4": stepped}
    plan = pcn.make_plan(model, stats, pcn.Budget(params=0.1, step=1))
    assert plan.layers["4"].rank is not None


def test_a_layer_that_no_step_makes_smaller_has_no_smaller_form() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    plan = pcn.make_plan(model, pcn.analyze(model, [torch.randn(256, 32)]), pcn.Budget(params=0.8))
    assert plan.layers["2"].reason == "no form of it would be smaller and no slower"


def test_steps_are_named_where_outputs_alone_could_be_fewer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 2), nn.ReLU(), nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64))
    stats = pcn.analyze(model, [torch.randn(256, 1000)])
    plan = pcn.make_plan(model, stats, pcn.Budget(params=0.8, two_sided=True))
    assert plan.layers["0"].reason == "no form of it would be smaller and no slower, in steps of 8 directions"
    finer = pcn.make_plan(model, stats, pcn.Budget(params=0.4, step=1, two_sided=True))
    assert (finer.layers["0"].rank, finer.layers["0"].output_rank) == (None, 1)


def test_more_trained_outputs_are_named_where_they_are_what_comes_next() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128))
    x = torch.randn(1024, 64) @ (torch.randn(64, 64) * torch.logspace(0, -2, 64))
    plan = pcn.make_plan(model, pcn.analyze(model, [x]), pcn.Budget(params=0.35, two_sided=True))
    layer = plan.layers["0"]
    assert (layer.rank, layer.reason) == (None, "the budget gives it a basis for its outputs alone")
    assert layer.output_rank is not None
    assert f"all inputs with {layer.output_rank + 8} trained outputs would be worth" in str(layer.note)
