"""What a plan says that the next step would have bought."""

from __future__ import annotations

import pytest

from pcn.planner.allocation import Served
from pcn.planner.explained import with_next_step
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
