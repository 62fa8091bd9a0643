"""Worth between response and even shares: whoever has much of a response to gain comes first, the rest is shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.planner.options import Option
from pcn.planner.valued import Value
from pcn.training import Settings
from pcn.training.requests import requested

INPUTS = 48


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [each for _ in range(3) for each in (nn.Linear(INPUTS, INPUTS), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(INPUTS, 4))


def batch() -> Tensor:
    """Inputs that lie close to a few directions: the first layer is soon done, by its response."""
    generator = torch.Generator().manual_seed(0)
    spread = 0.25 ** torch.arange(float(INPUTS))
    return 3 * torch.randn(512, INPUTS, generator=generator) * spread


MODEL, X = network(), batch()
STATS = pcn.analyze(MODEL, [X])


def ranks(worth: Any, share: float, **options: Any) -> list[int]:
    budget = pcn.Budget(params=share, step=1, worth=worth, config=pcn.PCNConfig(exclude=("6",)), **options)
    plan = pcn.make_plan(MODEL, STATS, budget)
    return [plan.layers[name].rank or INPUTS for name in ("0", "2", "4")]


@settings(max_examples=15, deadline=None)
@given(st.floats(0.15, 0.6))
def test_its_ends_are_response_and_even_shares(share: float) -> None:
    by_response = ranks(pcn.Response(), share)  # which leaves what it has no use for
    assert all(one >= other for one, other in zip(ranks(pcn.Hedged(1e-9), share), by_response, strict=True))
    assert sorted(ranks(pcn.Hedged(1e9), share)) == sorted(ranks(pcn.Evenly(), share))


def uneven(found: list[int]) -> int:
    return max(found) - min(found)


def test_between_them_it_goes_from_one_to_the_other() -> None:
    worths = (pcn.Response(), *map(pcn.Hedged, (1e-4, 1e-3, 1e-2)), pcn.Evenly())
    spreads = [uneven(ranks(worth, 0.3)) for worth in worths]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] > spreads[-1]


def test_what_a_budget_has_left_is_shared() -> None:
    assert uneven(ranks(pcn.Response(), 0.3)) >= 10
    assert uneven(ranks(pcn.Hedged(), 0.3)) <= 1


def test_a_tight_budget_goes_where_the_response_is() -> None:
    """The first layer needs all of its input alike, the second one reads little else than two directions."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.Tanh(), nn.Linear(INPUTS, INPUTS), nn.Tanh(), nn.Linear(48, 4))
    with torch.no_grad():
        model[0].weight[2:] *= 0.02
    x = torch.randn(2048, INPUTS)
    stats, config = pcn.analyze(model, [x]), pcn.PCNConfig(exclude=("4",), skip_larger=False)

    def chosen(worth: Any) -> list[int | None]:
        plan = pcn.make_plan(model, stats, pcn.Budget(params=0.25, step=1, worth=worth, config=config))
        return [plan.layers[name].rank for name in ("0", "2")]

    (first, second), (even, _) = chosen(pcn.Hedged()), chosen(pcn.Evenly())
    assert first is not None
    assert second is not None
    assert even is not None
    assert second <= 6
    assert first > even + 2


def test_both_count_in_a_form_with_patterns_of_taps() -> None:
    shares = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.4, 0.5], [0.0, 0.9, 1.0]])  # by directions and by patterns
    value = Value(shares[:, -1], patterns=shares, size=torch.tensor([0.0, 2.0, 3.0]), beside=True)
    options = [Option(rank, None, {"params": rank * (q or 2)}, kernel_rank=q) for rank in (1, 2) for q in (1, None)]
    found = value.of([*options, Option(None, None, {"params": 5})], lambda option: option.costs["params"])
    worths = {(option.rank, option.kernel_rank): option.worth for option in found}
    assert worths[1, 1] == pytest.approx(0.4 + 1.0)  # as much as half a direction trains
    assert worths[2, 1] == pytest.approx(0.9 + 2.0)  # which is better than one direction with every tap
    assert (1, None) not in worths
    assert worths[2, None] == pytest.approx(1.0 + 3.0)
    assert worths[None, None] > worths[2, None]


@pytest.mark.parametrize("options", [{"patterns": True}, {"drop_channels": True}, {"two_sided": True}])
def test_it_goes_with_all_else_that_a_budget_may_choose(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 4, 3)
    )
    before = sum(p.numel() for p in model.parameters())
    budget = pcn.Budget(params=0.5, step=2, worth=pcn.Hedged(), **options)
    pcn.compress_(model, [torch.randn(16, 3, 9, 9)], budget)
    assert 0.4 * before < sum(p.numel() for p in model.parameters() if p.requires_grad) <= 0.5 * before


@pytest.mark.parametrize("evenly", [0, -1.0, float("inf"), float("nan"), True, "half"])
def test_what_it_cannot_be(evenly: Any) -> None:
    with pytest.raises(pcn.ConfigError, match="give a number above 0"):
        pcn.Hedged(evenly)


def test_the_settings_name_it() -> None:
    wish = requested(Settings(params=0.25, worth="hedged", switch_at="1"))
    assert isinstance(wish, pcn.Budget)
    assert wish.worth == pcn.Hedged()
