"""Measurements of a training step: everything adds up, memory is what autograd keeps, nothing is left behind."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pcn
from pcn.costs.kept import Kept
from pcn.costs.usage import Usage
from pcn.planner.measured import LayerUsage, Measured
from small import ConvNet, Mlp, Residual, record

USAGE = st.builds(Usage, *[st.integers(0, 10**12)] * 5)
MODELS = {"dense": (Mlp, (12,)), "convolutional": (ConvNet, (3, 8, 8)), "residual": (Residual, (12,))}
EVERY = pcn.PCNConfig(skip_larger=False)


def grid(ranks: list[int], outputs: list[int]) -> st.SearchStrategy[dict[tuple[int, int | None], Usage]]:
    forms = [(rank, None) for rank in ranks] + [(rank, each) for rank in ranks for each in outputs]
    return st.fixed_dictionaries(dict.fromkeys(forms, USAGE))


@settings(max_examples=60)
@given(grid([2, 4, 9], [3, 8]), st.integers(1, 12), st.one_of(st.none(), st.integers(1, 10)))
def test_between_ranks_lie_amounts_between(
    tried: dict[tuple[int, int | None], Usage], rank: int, outputs: int | None
) -> None:
    layer = LayerUsage(Usage(1), tried)
    found = layer.at(rank, outputs)
    for field in Usage.__dataclass_fields__:
        amounts = [getattr(usage, field) for form, usage in tried.items() if (form[1] is None) == (outputs is None)]
        assert min(amounts) <= getattr(found, field) <= max(amounts)
    for form, usage in tried.items():
        assert layer.at(*form) == usage
    assert layer.at(None) == Usage(1)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from("abcd"), st.builds(LayerUsage, USAGE, grid([2, 8], []))), USAGE)
def test_layers_and_the_rest_are_the_whole_and_memory_is_its_parts(layers: dict[str, LayerUsage], rest: Usage) -> None:
    measured = Measured(rest, layers)
    assert measured.whole - rest == sum((layer.whole for layer in layers.values()), Usage())
    assert measured.whole.time_ns == rest.time_ns + sum(layer.whole.time_ns for layer in layers.values())
    whole = measured.whole
    parts = (whole.weights_bytes, whole.gradients_bytes, whole.optimizer_bytes, whole.activations_bytes)
    assert sum(parts) == whole.memory_bytes
    assert str(measured).count("\n") == 2 + 3 * len(layers)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.builds(LayerUsage, USAGE, grid([2, 8], []), st.one_of(st.none(), st.integers(1, 9)))
    ),
    st.integers(1, 10**12),
)
def test_layers_that_take_longer_than_the_model_are_scaled_and_only_in_time(
    layers: dict[str, LayerUsage], time_ns: int
) -> None:
    alone = sum((layer.whole for layer in layers.values()), Usage())
    whole = replace(alone, time_ns=time_ns)
    measured = Measured.levelled(whole, layers, "cpu")
    assert measured.whole == whole
    assert measured.rest.time_ns >= 0
    assert ("scaled" in measured.on) == (alone.time_ns > time_ns)
    for name, layer in layers.items():
        found = measured.layers[name]
        assert found.kernel_rank == layer.kernel_rank
        assert found.tried.keys() == layer.tried.keys()
        assert found.whole == replace(layer.whole, time_ns=found.whole.time_ns)
        for form, before in layer.tried.items():
            after = found.tried[form]
            assert after == replace(before, time_ns=after.time_ns)
            assert after.time_ns <= before.time_ns


def built(kind: str, train_basis: bool = False) -> tuple[nn.Module, Tensor, pcn.Budget]:
    torch.manual_seed(0)
    make, shape = MODELS[kind]
    config = pcn.PCNConfig(skip_larger=False, train_basis=train_basis)
    return make(), torch.randn(32, *shape), pcn.Budget(1.0, step=2, config=config)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_times_rise_with_rank_and_add_up(kind: str) -> None:
    model, x, budget = built(kind)
    before = record(model)
    state = torch.get_rng_state()
    measured = pcn.measure_costs(model, x, budget)
    assert record(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert measured.rest.time_ns >= 0
    for name, layer in measured.layers.items():
        assert layer.whole.time_ns > 0, name
        times = [layer.at(rank).time_ns for rank in range(1, model.get_submodule(name).weight.shape[1] + 1)]
        assert all(low <= high for low, high in pairwise(times))


def kept_bytes(model: nn.Module, x: Tensor) -> int:
    kept = Kept.beside((*model.parameters(), *model.buffers()))
    with kept.watched():
        output = model(x)
    assert output.requires_grad
    return kept.total_bytes


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)),
    st.floats(0.1, 1.0),
    st.booleans(),
    st.sampled_from([("rank",), ("output_rank",), ("rank", "output_rank")]),
)
def test_memory_is_predicted_to_the_byte(kind: str, share: float, train_basis: bool, sides: tuple[str, ...]) -> None:
    model, x, budget = built(kind, train_basis)
    ranks: dict[str, float | None] = {"rank": None, **dict.fromkeys(sides, share)}
    config = replace(pcn.PCNConfig(skip_larger=False, train_basis=train_basis, multiple_of=2), **ranks)
    budget = pcn.Budget(1.0, step=2, two_sided="output_rank" in sides, config=budget.config, optimizer="adam")
    measured = pcn.measure_costs(model, x, budget, times=False)
    assert measured.whole.activations_bytes == kept_bytes(copy.deepcopy(model).train(), x)
    stats = pcn.analyze(model, [x])
    plan = pcn.make_plan(model, stats, config)
    before, after = measured.expected(plan).before, measured.expected(plan).after
    for expected in (before, after):
        trained = sum(p.nbytes for p in model.parameters())
        stored = trained + sum(b.nbytes for b in model.buffers())
        found = (expected.weights_bytes, expected.gradients_bytes, expected.optimizer_bytes)
        assert found == (stored, trained, 2 * trained)
        if expected is before:
            plan.apply_(model, stats)
    assert after.activations_bytes == kept_bytes(model.train(), x)


def test_outputs_are_tried_that_a_rule_asks_for_or_a_budget_may_choose_from() -> None:
    """A basis of all the outputs of a large head would take gigabytes, and none of them is on offer."""
    model, x = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4000)), torch.ones(8, 16)

    def tried(**how: Any) -> list[set[int | None]]:
        budget = pcn.Budget(memory_mib=0.9, step=8, **how)
        measured = pcn.measure_costs(model, x, budget, times=False)
        return [{outputs for _, outputs in measured.layers[name].tried} for name in ("0", "1")]

    assert tried() == [{None}, {None}]
    assert tried(two_sided=True) == [{None, 8, 32}, {None}]
    ruled = pcn.PCNConfig(layers={"1": pcn.LayerRule(output_rank=12)}, multiple_of=8)
    assert tried(config=ruled) == [{None}, {None, 16}]
    assert tried(config=ruled, two_sided=True) == [{None, 8, 32}, {None, 16}]


def test_what_several_layers_keep_is_counted_once_and_belongs_to_none() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.left, self.right = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.left(x) + self.right(x)

    measured = pcn.measure_costs(Two(), torch.ones(32, 8), times=False)
    assert measured.layers["stem"].whole.activations_bytes == 4 * 32 * 8
    assert measured.layers["left"].whole.activations_bytes == 0
    assert measured.rest.activations_bytes == 4 * 32 * 16


class Inside(nn.Module):
    """Layers that run as they are, without gradients, or are run again in the backward pass."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.stem, self.inner, self.last = way, nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.way == "run again":
            return self.last(checkpoint(self._body, x, use_reentrant=False))
        with torch.set_grad_enabled(self.way != "without gradients"):
            x = self._body(x)
        return self.last(x)

    def _body(self, x: Tensor) -> Tensor:
        return self.inner(x).relu()


@pytest.mark.parametrize("way", ["as they are", "without gradients", "run again"])
def test_forms_keep_nothing_where_their_layer_does_not(way: str) -> None:
    model, x = Inside(way), torch.randn(64, 8)
    measured = pcn.measure_costs(model, x, pcn.Budget(1.0, step=2, config=EVERY), times=False)
    assert any(form.activations_bytes for form in measured.layers["inner"].tried.values()) == (way == "as they are")
    stats = pcn.analyze(model, [x])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(0.5, skip_larger=False))
    plan.apply_(model, stats)
    assert measured.expected(plan).after.activations_bytes == kept_bytes(model.train(), x)


def test_a_layer_that_runs_twice_takes_twice_and_one_that_does_not_takes_nothing() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.twice, self.never = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.twice(self.twice(self.stem(x)))

    measured = pcn.measure_costs(Again(), torch.ones(32, 8), pcn.Budget(1.0, step=4, config=EVERY), times=False)
    assert measured.layers["twice"].whole.activations_bytes == 2 * 4 * 32 * 16
    assert measured.layers["twice"].tried[4, None].activations_bytes == 2 * 4 * 32 * 4
    assert measured.at("never", 4) == measured.at("never", None) == Usage()
    assert measured.whole.weights_bytes == sum(p.nbytes for p in Again().parameters())


def test_frozen_layers_keep_no_state_and_samples_can_be_asked_for() -> None:
    model = Mlp()
    model.fc2.weight.requires_grad_(False)
    budget = pcn.Budget(1.0, optimizer="sgd", batch=7)
    measured = pcn.measure_costs(model, torch.ones(3, 12), budget, times=False)
    assert measured.layers["fc2"].whole.gradients_bytes == model.fc2.bias.nbytes
    assert measured.whole.optimizer_bytes == 0
    assert measured.on == "model(float32[7, 12]) on cpu"


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(pcn.ConfigError, match="no weights on a device"):
        pcn.measure_costs(Mlp().to("meta"), torch.ones(3, 12))
    with pytest.raises(pcn.ConfigError, match="no tensor that takes gradients"):
        pcn.measure_costs(Mlp().requires_grad_(False), torch.ones(3, 12))
    model = Mlp()
    pcn.compress_(model, [torch.randn(50, 12)], pcn.PCNConfig(rank=4, skip_larger=False))
    with pytest.raises(pcn.PlanError, match="transformed already"):
        pcn.measure_costs(model, torch.ones(3, 12))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_memory_is_what_the_allocator_says() -> None:
    device, others = torch.device("cuda"), torch.cuda.memory_allocated()
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.ReLU())]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = torch.randn(4096, 2048, device=device)
    measured = pcn.measure_costs(model, x).whole
    torch.cuda.empty_cache()
    for _ in range(2):  # the first step makes the optimizer's state
        optimizer.zero_grad(set_to_none=False)
        torch.cuda.reset_peak_memory_stats()
        model(x).sum().backward()
        optimizer.step()
    peak = torch.cuda.max_memory_allocated() - others
    # Beside what is counted there are gradients of activations on their way, and cuBLAS's own memory for two streams.
    assert 0.9 * measured.memory_bytes < peak < 1.5 * measured.memory_bytes + 2**27
    assert measured.time_ns > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_model_that_cannot_be_captured_is_timed_too() -> None:
    class Waits(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * float(x.abs().max()))

    measured = pcn.measure_costs(Waits(64).cuda(), torch.randn(256, 12, device="cuda"))
    assert measured.rest.time_ns > 0
    assert pcn.measure_costs(Mlp(64).cuda(), torch.randn(256, 12, device="cuda")).whole.time_ns > 0


def test_what_was_measured_for_something_else_is_refused() -> None:
    import pcn

    model, batch = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(16, 64)
    stats = pcn.analyze(model, [batch])
    momentum = pcn.measure_costs(model, batch, times=False)
    assert pcn.Measured.from_json(momentum.to_json()) == momentum
    for wrong in (
        "",
        "{}",
        "[1]",
        "{",
        '{"rest": [], "layers": {"a": 1}}',
        momentum.to_json().replace("rest", "least"),
    ):
        with pytest.raises(pcn.FileError, match="these are no measurements"):
            pcn.Measured.from_json(wrong)
    with pytest.raises(pcn.ConfigError, match=r"keeps 1 numbers .* this one keeps 2"):
        pcn.make_plan(model, stats, pcn.Budget(memory_mib=0.9, optimizer="adam"), measured=momentum)
    excluding = pcn.Budget(memory_mib=0.9, config=pcn.PCNConfig(exclude=("2",)))
    partly = pcn.measure_costs(model, batch, excluding, times=False)
    with pytest.raises(pcn.ConfigError, match="'2' was left out"):
        pcn.make_plan(model, stats, pcn.Budget(memory_mib=0.9), measured=partly)
    with pytest.raises(pcn.ConfigError, match="how much Adadelta keeps"):
        pcn.Budget(memory_mib=0.9).trained_by(torch.optim.Adadelta(model.parameters()))


class WithTargets(nn.Sequential):
    """A model that wants targets as well while it trains."""

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        outputs = super().forward(x)
        return nn.functional.mse_loss(outputs, targets) if self.training else outputs


def test_a_model_that_fails_only_where_it_trains_is_refused_with_the_mode() -> None:
    model, batch = WithTargets(nn.Linear(12, 3)), torch.randn(8, 12)
    pcn.analyze(model, [batch])
    with pytest.raises(pcn.StatisticsError, match=r"failed on the batch in train mode, called as model\("):
        pcn.measure_costs(model, batch)
