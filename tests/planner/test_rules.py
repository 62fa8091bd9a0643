"""Rules beside a budget: what they ask for by name happens, and what they leave open is decided layer by layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pcn

BATCHES = [torch.randn(128, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def network(*, norms: bool = True) -> nn.Sequential:
    """Dense layers, each but the last with a batch norm behind it."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (16, 48, 48):
        layers += [nn.Linear(inputs, 48), nn.BatchNorm1d(48) if norms else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(48, 4))


def planned(config: pcn.PCNConfig, params: float = 0.5) -> pcn.Plan:
    model = network()
    return pcn.make_plan(model, pcn.analyze(model, BATCHES), pcn.Budget(params=params, step=4, config=config))


@pytest.mark.parametrize("params", [0.5, 0.7, 0.9, 1.0])
def test_channels_that_a_rule_drops_by_name_go_and_who_reads_them_has_a_basis(params: float) -> None:
    model = network()
    limit = int(params * sum(parameter.numel() for parameter in model.parameters()))
    switch = pcn.Switch(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        pcn.Budget(params=params, step=4, config=pcn.PCNConfig(layers={"3": pcn.LayerRule(rank=16, keep_outputs=32)})),
        at=1,
    )
    switch.after_epoch(1, BATCHES)
    assert switch.plan is not None
    layers = switch.plan.layers
    assert (layers["3"].rank, layers["3"].kept_outputs) == (16, 32)
    assert (layers["6"].kept_inputs, layers["6"].rank is not None) == (32, True)
    assert layers["6"].rank <= 32
    assert sum(parameter.numel() for parameter in model.parameters()) <= limit


def test_what_a_rule_drops_by_name_is_counted() -> None:
    rule = {"3": pcn.LayerRule(rank=16, keep_outputs=8)}
    plan = planned(pcn.PCNConfig(layers=rule), params=0.26)
    assert plan.layers["3"].kept_outputs == 8
    with pytest.raises(pcn.ConfigError, match="too small"):
        planned(pcn.PCNConfig(layers={"3": pcn.LayerRule(rank=16)}), params=0.26)


def test_channels_that_a_glob_asks_for_may_stay_where_a_reader_stays_whole() -> None:
    plan = planned(pcn.PCNConfig(layers={"[3]": pcn.LayerRule(rank=16, keep_outputs=32)}), params=1.0)
    assert plan.layers["3"].kept_outputs == 48
    assert plan.layers["6"].rank is None
    assert "reads it and is not transformed" in (plan.layers["3"].output_reason or "")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (pcn.PCNConfig(layers={"3": pcn.LayerRule(order="kept_block")}), {"3": 0.0, "6": 1.0}),
        (pcn.PCNConfig(layers={"*": pcn.LayerRule(order="kept_block")}), {"3": 0.0, "6": 0.0}),
        (
            pcn.PCNConfig(order="kept_block", layers={"3": pcn.LayerRule(order="project_first")}),
            {"3": 1.0, "6": 0.0},
        ),
        (pcn.PCNConfig(layers={"3": pcn.LayerRule(rank=8)}), {"3": 1.0, "6": 1.0}),
        (pcn.PCNConfig(layers={"[36]": pcn.LayerRule(rank=8)}), {"3": 1.0, "6": 1.0}),
        (pcn.PCNConfig(layers={"3": pcn.LayerRule(rank=8, order="kept_block")}), {"3": 0.0, "6": 1.0}),
        (pcn.PCNConfig(layers={"3": pcn.LayerRule(rank=8, precondition=0.5)}), {"3": 0.5, "6": 1.0}),
        (pcn.PCNConfig(precondition=0.5, layers={"3": pcn.LayerRule(rank=8)}), {"3": 0.5, "6": 0.5}),
    ],
)
def test_directions_are_whitened_before_a_batch_norm_unless_the_layers_own_order_makes_bases(
    config: pcn.PCNConfig, expected: dict[str, float]
) -> None:
    model = network()
    stats, budget = pcn.analyze(model, BATCHES), pcn.Budget(params=0.5, step=4, config=config)
    plan = pcn.make_plan(model, stats, budget)
    assert {name: plan.layers[name].precondition for name in expected} == expected
    assert plan.layers["9"].precondition == (0.5 if config.precondition else 0.0)
    again = pcn.make_plan(model, stats, pcn.fit_budget(model, stats, budget))
    assert {name: (layer.rank, layer.precondition) for name, layer in again.layers.items()} == {
        name: (layer.rank, layer.precondition) for name, layer in plan.layers.items()
    }


def test_a_glob_may_still_skip_what_would_not_get_smaller() -> None:
    plan = planned(pcn.PCNConfig(layers={"[3]": pcn.LayerRule(rank=40)}), params=0.8)
    assert plan.layers["3"].rank is None
    assert "would not make it smaller" in (plan.layers["3"].reason or "")


def test_a_refusal_names_what_cannot_go_with_bases_of_its_own() -> None:
    for config, cause in (
        (pcn.PCNConfig(rank=8, order="kept_block", precondition=0.5), "precondition=0.5"),
        (pcn.PCNConfig(rank=8, order="kept_block", basis="response"), "basis='response'"),
    ):
        with pytest.raises(
            pcn.ConfigError, match=f"'kept_block' makes PCA bases .* cannot go with {cause}: leave that"
        ):
            pcn.make_plan(network(), None, config)


def test_nothing_is_preconditioned_before_a_batch_norm_that_is_frozen() -> None:
    class Frozen(nn.Sequential):
        """Keeps its batch norm as it is, whatever mode it trains in."""

        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self[1].eval()
            return self

    powers = []
    for kind in (nn.Sequential, Frozen):
        torch.manual_seed(0)
        model = kind(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32)).train()
        stats = pcn.analyze(model, [torch.randn(200, 32)])
        powers.append(pcn.make_plan(model, stats, pcn.Budget(params=0.5)).layers["0"].precondition)
    assert powers == [1.0, 0.0]
