"""What is promised before a plan is applied is what the model has afterwards."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.costs.count import count, flops_per_sample
from pcn.fusion import Form, fuse_
from pcn.plans.prospect import prospect
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
    [{}, {"output_rank": 0.5}, {"keep_outputs": 0.75}, {"train_basis": True}, {"keep_dropped": True}],
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


CONVOLUTIONS = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}


@settings(max_examples=12)
@given(
    dims=st.sampled_from(sorted(CONVOLUTIONS)),
    padding_mode=st.sampled_from(["zeros", "circular", "reflect", "replicate"]),
    padding=st.sampled_from([0, 1, 2, "same"]),
    kernel=st.sampled_from([1, 3]),
    stride=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    options=st.sampled_from([{}, {"output_rank": 0.5}, {"keep_outputs": 0.5}, {"keep_dropped": True}]),
    form=st.sampled_from([None, "fused", "factored"]),
)
def test_operations_of_convolutions_are_those_of_the_plan_however_they_pad_and_run(
    dims: int,
    padding_mode: str,
    padding: int | str,
    kernel: int,
    stride: int,
    groups: int,
    options: dict[str, Any],
    form: Form | None,
) -> None:
    conv, norm = CONVOLUTIONS[dims]
    moves = {"stride": 1 if padding == "same" else stride, "padding": padding, "padding_mode": padding_mode}
    layer = conv(8, 6, kernel, groups=groups, **moves)
    model = nn.Sequential(conv(3, 8, 1), norm(8), nn.ReLU(), layer, norm(6), nn.ReLU(), conv(6, 4, 1)).eval()
    batch = torch.ones(2, 3, *(5, 4, 6)[:dims])
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=0.5, skip_larger=False, **options), example=batch)
    before, after = (
        sum(getattr(layer, side) for layer in plan.layers.values()) for side in ("flops_before", "flops_after")
    )
    assert flops_per_sample(model, batch) == before
    plan.reshape_(model)
    if form is not None:
        fuse_(model, batch, forms=form)
    assert flops_per_sample(model, batch) == after


class Located(nn.Module):
    """Layers that are called on tables, be they trained, stored or made of numbers, and one on samples and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 16))
        self.register_buffer("grid", torch.randn(6, 16))
        self.near, self.far, self.read = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(12, 16)
        self.both = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.arange(16, device=x.device).float() / 16
        where = self.near(self.table + self.far(self.grid)).mean(0) + self.near(numbers)
        return self.both(self.read(x) + where) + self.both(self.table).mean(0)


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_what_depends_on_no_sample_is_no_operation_of_one(batch: int) -> None:
    model, x = Located(), torch.ones(batch, 12)
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=4), example=x)
    before = {name: layer.flops_before for name, layer in plan.layers.items()}
    assert before == {"near": 0, "far": 0, "read": 2 * 12 * 16, "both": 2 * 16 * 16}
    promised = prospect(model, plan, Example.of(x))
    assert promised.before.flops_per_sample == sum(before.values())
    assert promised.after.flops_per_sample == sum(layer.flops_after for layer in plan.layers.values())


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
