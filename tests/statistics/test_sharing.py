"""Layers that read the same activation are measured once, and nothing else is taken for the same."""

import gc
import weakref

import pytest
import torch
from torch import nn

from pcn.errors import StatisticsError
from pcn.statistics import analyze
from pcn.statistics.moments import Covariance


class Model(nn.Module):
    """Layers a, b, c of the same size, and a forward pass given as a function."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name in "abc":
            self.add_module(name, layers.get(name, nn.Linear(6, 6)))

    def forward(self, x):
        return self.run(self, x)


def keys(run, batches=None, **layers):
    return analyze(Model(run, **layers), batches or [torch.randn(4, 6), torch.randn(3, 6)]).layers


def test_readers_of_one_tensor_share():
    assert keys(lambda m, x: (m.a(x), m.c(x), m.b(x))) == {"a": "a", "b": "a", "c": "a"}


def test_the_first_reader_gives_the_name():
    assert keys(lambda m, x: (m.c(x), m.a(x), m.b(x + 1))) == {"a": "c", "b": "b", "c": "c"}


def test_equal_values_are_not_the_same_tensor():
    assert keys(lambda m, x: (m.a(x), m.b(x.clone()), m.c(x.view(-1, 6)))) == {"a": "a", "b": "b", "c": "c"}


def test_writing_in_place_makes_another_activation():
    def run(m, x):
        y = m.a(x)
        z = m.b(y)
        y.relu_()
        return z + m.c(y)

    statistics = analyze(Model(run), [torch.randn(50, 6)])
    assert statistics.layers == {"a": "a", "b": "b", "c": "c"}
    assert (statistics.mean("c") > statistics.mean("b")).any()


def test_writing_through_a_view_is_noticed():
    def run(m, x):
        x = x.clone()
        y = m.a(x)
        x[:, 0].zero_()
        return y + m.b(x), m.c(x)

    assert keys(run) == {"a": "a", "b": "b", "c": "b"}


def test_memory_that_is_used_again_is_another_tensor():
    def run(m, x):
        for layer in (m.a, m.b, m.c):
            layer(x * 2)

    assert keys(run) == {"a": "a", "b": "b", "c": "c"}


def test_different_groups_need_different_bases():
    layers = {"a": nn.Conv1d(6, 6, 1), "b": nn.Conv1d(6, 6, 1, groups=2), "c": nn.Conv1d(6, 6, 3, groups=2)}
    batches = [torch.randn(2, 6, 8)]
    assert keys(lambda m, x: (m.a(x), m.b(x), m.c(x)), batches, **layers) == {"a": "a", "b": "b", "c": "b"}


def test_a_linear_and_a_convolution_read_different_dimensions():
    batches = [torch.randn(2, 6, 6)]
    assert keys(lambda m, x: (m.a(x), m.b(x), m.c(x)), batches, b=nn.Conv1d(6, 6, 1))["b"] == "b"


def test_a_layer_called_twice_pools_its_calls():
    batch = torch.randn(40, 6)
    statistics = analyze(Model(lambda m, x: (m.a(x), m.a(x + 1), m.b(x), m.c(x))), [batch])
    assert statistics.layers == {"a": "a", "b": "b", "c": "b"}
    assert statistics.samples("a") == 80
    assert statistics.samples("b") == 40
    torch.testing.assert_close(statistics.mean("a"), batch.double().mean(0) + 0.5, rtol=1e-5, atol=1e-6)


def test_layers_called_twice_on_the_same_share():
    def run(m, x):
        for y in (x, x + 1):
            m.a(y), m.b(y)
        m.c(x)

    assert keys(run) == {"a": "a", "b": "a", "c": "c"}


def test_a_module_under_two_names_is_one():
    shared = nn.Linear(6, 6)
    model = nn.ModuleDict({"one": shared, "two": shared})
    model.forward = lambda x: model["two"](model["one"](x))
    statistics = analyze(model, [torch.randn(5, 6)])
    assert statistics.layers == {"one": "one"}
    assert statistics.samples("one") == 10


def test_each_activation_is_measured_once(monkeypatch):
    blocks = []
    plain = Covariance.add
    monkeypatch.setattr(Covariance, "add", lambda self, block: blocks.append(block.shape) or plain(self, block))
    batches = [torch.randn(4, 6)] * 5
    keys(lambda m, x: (m.a(x), m.b(x), m.c(x)), batches)
    assert len(blocks) == 3 + 4  # in the first batch nobody knows yet who shares


def test_sharing_that_changes_between_batches_is_refused():
    def run(m, x):
        m.a(x), m.b(x if len(x) == 4 else x + 1), m.c(x)

    with pytest.raises(StatisticsError, match=r"'b' and 'a' read the same activation in one batch and different ones"):
        keys(run)


def test_layers_that_start_to_share_stay_apart():
    def run(m, x):
        m.a(x), m.b(x if len(x) == 3 else x + 1), m.c(x)

    assert keys(run) == {"a": "a", "b": "b", "c": "a"}


def test_layers_called_in_some_batches_only():
    def run(m, x):
        m.a(x)
        if len(x) == 3:
            m.b(x), m.c(x)

    batches = [torch.randn(n, 6) for n in (4, 3, 4, 3)]
    statistics = analyze(Model(run), batches)
    assert statistics.layers == {"a": "a", "b": "b", "c": "b"}
    assert (statistics.samples("a"), statistics.samples("c")) == (14, 6)


def test_tensors_without_a_version_are_never_taken_for_the_same():
    def run(m, x):
        with torch.inference_mode():
            y = x + 1
            return m.a(y), m.b(y), m.c(y)

    assert keys(run) == {"a": "a", "b": "b", "c": "c"}


def test_activations_are_not_kept_alive():
    alive = []

    def run(m, x):
        y = x + 1
        alive.append(weakref.ref(y))
        m.a(y), m.b(y)
        del y
        gc.collect()
        assert alive[-1]() is None
        return m.c(x)

    keys(run)
    assert len(alive) == 2


def test_merged_parts_that_name_an_activation_differently_are_one():
    def run(m, x):
        return (m.a(x), m.b(x), m.c(x)) if len(x) == 4 else (m.c(x), m.b(x), m.a(x))

    model = Model(run)
    parts = [analyze(model, [torch.randn(n, 6)]) for n in (4, 3)]
    assert parts[0].layers["b"] != parts[1].layers["b"]
    merged = parts[0].merge(parts[1])
    assert merged.layers == {"a": "a", "b": "a", "c": "a"}
    assert [merged.samples(name) for name in "abc"] == [7, 7, 7]
