"""What is promised before a plan is applied is what the model has afterwards."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import pcn
from pcn.costs.count import count, flops_per_sample
from pcn.costs.prospect import prospect
from pcn.running.example import Example
from small import Branching, conv_net, images, record, vectors


@pytest.mark.parametrize("keep", [None, 0.75])
def test_the_numbers_are_those_of_the_applied_plan_and_the_model_is_untouched(keep: float | None) -> None:
    model, batch = conv_net(), images(100)
    stats = pcn.analyze(model, [batch])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=0.5, keep_outputs=keep, skip_larger=False))
    before = record(model)
    promised = prospect(model, plan, stats.example)
    assert record(model) == before
    for size, applied in ((promised.before, model), (promised.after, copy.deepcopy(model))):
        if size is promised.after:
            plan.apply_(applied, stats)
        cost = count(applied)
        assert (size.trainable, size.stored) == (cost.trainable, cost.total)
        assert size.flops_per_sample == flops_per_sample(applied, batch)
    assert [what for what, _, _ in promised.rows()] == ["trained parameters", "stored parameters", "FLOPs per sample"]


@pytest.mark.parametrize(
    "options",
    [{}, {"output_rank": 0.5}, {"keep_outputs": 0.75}, {"train_basis": True}],
    ids=lambda options: "".join(options),
)
def test_operations_are_those_of_the_plan_whatever_the_batch(options: dict[str, Any]) -> None:
    model = conv_net()
    config = pcn.PCNConfig(rank=0.5, skip_larger=False, **options)
    plan = pcn.make_plan(model, None, config, example=images(2))
    sides = [sum(getattr(layer, side) for layer in plan.layers.values()) for side in ("flops_before", "flops_after")]
    for batch in (1, 2, 7):
        promised = prospect(model, plan, Example.of(images(batch)))
        assert [promised.before.flops_per_sample, promised.after.flops_per_sample] == sides


def test_without_a_call_the_operations_are_not_known() -> None:
    model = conv_net()
    promised = prospect(model, pcn.make_plan(model, None, pcn.PCNConfig(rank=2)), None)
    assert promised.after.flops_per_sample is None
    assert promised.flops_reason == "how the model is called is unknown"
    assert len(list(promised.rows())) == 2


def test_a_model_that_looks_at_values_is_said() -> None:
    model = Branching()
    example = Example.of(vectors(4))
    promised = prospect(model, pcn.make_plan(model, None, pcn.PCNConfig(rank=2), example=torch.ones(4, 12)), example)
    assert promised.before.flops_per_sample is None
    assert promised.flops_reason is not None
    assert "does not run without values" in promised.flops_reason
