"""Counts follow the paper's way of counting; FLOPs are those of the textbook formulas, and counting leaves no trace."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pcn import models
from pcn.costs.count import Cost, count, flops_per_sample
from pcn.errors import ConfigError
from pcn.nn import PCConv2d


def test_running_statistics_count_to_the_total_and_the_batch_counter_does_not() -> None:
    assert count(nn.BatchNorm2d(5)) == Cost(trainable=10, total=20)


def test_frozen_parameters_count_to_the_total() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    assert count(layer) == Cost(trainable=2, total=8)


def test_a_module_under_two_names_counts_once() -> None:
    norm = nn.BatchNorm1d(4)
    assert count(nn.Sequential(norm, norm)) == count(norm)


def test_a_buffer_in_two_modules_counts_for_each() -> None:
    first, second, basis = nn.Module(), nn.Module(), torch.ones(4, 2)
    first.register_buffer("basis", basis)
    second.register_buffer("basis", basis)
    assert count(nn.ModuleList([first, second])).total == 16


def test_buffers_that_are_not_saved_do_not_count() -> None:
    module = nn.Module()
    module.register_buffer("cache", torch.ones(7), persistent=False)
    module.register_buffer("positions", torch.arange(7))
    module.register_buffer("missing", None)
    assert count(module) == Cost(0, 0)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_flops_of_a_linear_layer(inputs: int, outputs: int, batch: int, bias: bool) -> None:
    assert flops_per_sample(nn.Linear(inputs, outputs, bias), torch.ones(batch, inputs)) == 2 * inputs * outputs


@given(
    groups=st.integers(1, 3),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    batch=st.integers(1, 3),
)
def test_flops_of_a_convolution(groups: int, inputs: int, outputs: int, kernel: int, stride: int, batch: int) -> None:
    layer = nn.Conv2d(groups * inputs, groups * outputs, kernel, stride=stride, padding=1, groups=groups)
    images = torch.ones(batch, groups * inputs, 6, 5)
    positions = layer(images)[0, 0].numel()
    assert flops_per_sample(layer, images) == 2 * positions * groups * outputs * inputs * kernel**2


class Queries(nn.Module):
    """Learned queries that attend to each other, then to the input, beside a product of weights and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(5, 8))
        self.left, self.right = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(4, 8))
        self.read = nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(64, 7, 8))

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries.expand(len(x), -1, -1)
        queries = queries @ queries.mT @ queries  # for every sample: 2 * (5 * 5 * 8) * 2
        self.cache[: len(x)] = self.read(x)  # 2 * 7 * 8 * 8
        seen = self.cache[: len(x)] @ (self.left @ self.right)  # 2 * 7 * 8 * 8, and a product that is the same for all
        state = self.left.new_zeros(len(x), 8) @ self.left  # 2 * 8 * 4
        return queries @ seen.mT + state.sum()  # 2 * 5 * 7 * 8


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 32))
def test_what_is_computed_once_is_not_counted_and_what_every_sample_takes_is(batch: int) -> None:
    each = 2 * (2 * 5 * 5 * 8 + 2 * 7 * 8 * 8 + 8 * 4 + 5 * 7 * 8)
    assert flops_per_sample(Queries(), torch.ones(batch, 7, 8)) == each


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 9))
def test_samples_that_meet_each_other_take_more_the_more_there_are(batch: int) -> None:
    layer = nn.Linear(6, 4)
    counted = flops_per_sample(layer, torch.ones(batch, 6), forward=lambda model, x: model(x) @ model(x).T)
    assert counted == 2 * 2 * 6 * 4 + 2 * 4 * batch


GATES = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("directions", [1, 2])
def test_flops_of_a_recurrent_layer_are_those_of_its_gates(
    kind: type[nn.RNNBase], device: str, directions: int
) -> None:
    layers = kind(8, 6, num_layers=2, bidirectional=directions == 2, batch_first=True, device=device)
    widths = (8, directions * 6)  # what the first and the second layer read, beside their own 6 outputs
    each = 2 * GATES[kind] * directions * sum(6 * (width + 6) for width in widths)
    assert flops_per_sample(layers, torch.ones(3, 5, 8, device=device)) == 5 * each


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("training", [True, False])
def test_flops_of_attention_do_not_depend_on_the_kernel_that_runs_it(device: str, training: bool) -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device=device).train(training)
    linear, attention = 4 * 8 * 8 + 2 * 8 * 16, 2 * 5 * 8  # for each of 5 positions
    assert flops_per_sample(encoder, torch.ones(3, 5, 8, device=device)) == 2 * 5 * (linear + attention)
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mkldnn.enabled
    assert torch.backends.cudnn.enabled


def test_flops_of_resnet50_are_the_known_four_billion_multiply_adds() -> None:
    with torch.device("meta"):
        assert flops_per_sample(models.resnet50(), models.example("resnet50")) == 2 * 4_089_184_256


def test_counting_flops_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    flops_per_sample(model, torch.ones(2, 3, 8, 8))
    assert model.training
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_counting_flops_leaves_modules_alone_that_have_two_names() -> None:
    shared, norm, tied = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
    model = nn.Sequential(shared, norm, shared, norm, tied)
    tied.weight = shared.weight
    model.last = tied
    held = dict(model.state_dict(keep_vars=True))
    assert flops_per_sample(model, torch.ones(4, 6)) == 4 * 2 * 6 * 6
    assert all(tensor is held[name] for name, tensor in model.state_dict(keep_vars=True).items())


def test_batches_reach_the_model_as_in_analysis() -> None:
    model, images = nn.Linear(3, 2), torch.ones(4, 3)
    expected = flops_per_sample(model, images)
    assert flops_per_sample(model, (images, torch.zeros(4))) == expected
    assert flops_per_sample(model, {"input": images}) == expected
    assert flops_per_sample(model, [images], forward=lambda m, batch: m(batch[0])) == expected
    assert flops_per_sample(torch.compile(model), images) == expected


def test_a_batch_without_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tensor with samples"):
        flops_per_sample(nn.Linear(3, 2), 3, forward=lambda model, batch: None)


class Experts(nn.Module):
    """Products of several matrices in one call, in the four ways that there are."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.weight = way, nn.Parameter(torch.randn(3, 8, 16))

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.tensor([2, 4, 8], dtype=torch.int32)
        if self.way == "rows":
            return torch._grouped_mm(x, self.weight, offs=ends)
        if self.way == "batches":
            return torch._grouped_mm(x.expand(3, -1, -1), self.weight)
        if self.way == "columns":
            return torch._grouped_mm(self.weight.mT, x.mT, offs=ends)
        return torch._grouped_mm(x.mT, x @ self.weight[0], offs=ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("way", "multiplied"), [("rows", 8 * 8 * 16), ("batches", 3 * 8 * 8 * 16), ("columns", 16 * 8 * 8)]
)
def test_products_of_several_matrices_are_counted_in_every_dtype(way: str, multiplied: int, dtype: torch.dtype) -> None:
    x = torch.randn(8, 8, dtype=dtype)
    assert flops_per_sample(Experts(way).to(dtype), x) == 2 * multiplied / 8
    both = 2 * (8 * 8 * 16 + 8 * 8 * 16) / 8  # of x and of what it was multiplied with
    assert flops_per_sample(Experts("sums").to(dtype), x) == both


@pytest.mark.parametrize("batch", [1, 2, 32])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_kernel_out_of_patterns_is_made_once_for_all_samples(batch: int, groups: int) -> None:
    layer = PCConv2d(16, 16, 3, rank=4, padding=1, groups=groups, kernel_rank=2)
    every_tap = PCConv2d(16, 16, 3, rank=4, padding=1, groups=groups)
    images = torch.ones(batch, 16, 8, 6)
    assert flops_per_sample(layer, images) == flops_per_sample(every_tap, images)
