"""Analysing leaves no trace on the model, on the settings or on the random numbers."""

import copy
import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from pcn.errors import TraceError
from pcn.graph import trace
from pcn.running.untouched import MODES, training_norms, untouched
from pcn.statistics import analyze


class Stateful(nn.Module):
    """Writes to its buffers in every mode, one in place and one anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x):
        self.calls += 1
        self.last = x.mean()
        return x + torch.rand(()) + random.random() + np.random.rand()  # noqa: NPY002


def make_model():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5), Stateful(), nn.Flatten(), nn.Linear(8 * 16, 4)
    )
    model[1].eval()  # frozen statistics in a model that trains
    model(torch.randn(2, 3, 6, 6)).sum().backward()
    return model


def snapshot(model):
    return {
        "modes": [module.training for module in model.modules()],
        "tensors": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "identities": [id(t) for t in (*model.parameters(), *model.buffers())],
        "hooks": [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "random": torch.get_rng_state(),
        "other random": (random.getstate(), np.random.get_state()[1].tolist()),  # noqa: NPY002
        "settings": (torch.get_float32_matmul_precision(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def assert_same(before, after):
    for key in ("tensors", "gradients", "random"):
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=0)
    for key in ("modes", "identities", "hooks", "requires_grad", "settings", "other random"):
        assert after[key] == before[key]


@pytest.mark.parametrize("mode", ["eval", "batch", "train"])
def test_everything_is_as_it_was(mode):
    model = make_model()
    before = snapshot(model)
    analyze(model, [torch.ones(4, 3, 6, 6)] * 2, mode=mode)
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("where", ["model", "batches", "first batch", "bad values"])
def test_everything_is_as_it_was_after_an_error(where):
    model = make_model()
    batch = torch.ones(4, 3, 6, 6)

    def batches():
        if where == "first batch":
            raise RuntimeError("broken")
        yield batch
        if where == "batches":
            raise RuntimeError("broken")
        yield batch * float("nan") if where == "bad values" else batch

    def forward(model, batch):
        model(batch)
        if where == "model":
            raise RuntimeError("broken")

    before = snapshot(model)
    with pytest.raises(Exception, match=r"broken|NaN"):
        analyze(model, batches(), forward=forward, mode="train")
    assert_same(before, snapshot(model))


def test_the_compiler_works_again_afterwards():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    model = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), backend=backend)
    analyze(model, [torch.randn(4, 3)])
    assert compiled == []
    model(torch.randn(4, 3))
    assert len(compiled) == 1


def test_training_goes_on_as_if_nothing_had_happened():
    def train(look):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        for step in range(4):
            if look and step == 2:
                analyze(model, [torch.ones(4, 3, 6, 6)])
            optimizer.zero_grad()
            model(torch.randn(4, 3, 6, 6)).square().sum().backward()
            optimizer.step()
        return model.state_dict()

    torch.testing.assert_close(train(look=True), train(look=False), rtol=0, atol=0)


def test_models_whose_mode_cannot_be_changed_by_their_users():
    class AlwaysTrains(nn.Linear):
        def train(self, mode=True):
            return super().train(True)

    model = nn.Sequential(AlwaysTrains(3, 3), nn.Linear(3, 2)).train()
    analyze(model, [torch.randn(4, 3)])
    assert all(module.training for module in model.modules())


def test_the_example_does_not_hold_a_graph():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    batch = torch.randn(4, 3, requires_grad=True) * 2
    statistics = analyze(model, [batch])
    assert not statistics.example.inputs.requires_grad
    assert copy.deepcopy(statistics.example).inputs.equal(batch)


class Caches(nn.Module):
    """Has a batch norm; in its train() it forgets what it has worked out at inference, and takes a weight apart."""

    def __init__(self):
        super().__init__()
        self.norm, self.known = nn.BatchNorm1d(2), 0
        self.weight = nn.Parameter(torch.ones(2))

    def train(self, mode=True):
        if mode:
            self.known = None
            self.weight.data -= 1
        return super().train(mode)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_model_does_where_it_is_put_into_train_mode_does_not_happen(mode):
    model = Caches().eval()
    model.known = 3
    model.weight.data.fill_(1)
    assert training_norms(model) == {"norm"}
    with untouched(model, mode):
        assert model.norm.training == (mode == "batch")
    assert model.known == 3
    assert model.weight.tolist() == [1, 1]


def test_a_norm_without_running_statistics_always_normalises_by_the_batch():
    model = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.BatchNorm1d(2))
    model.train()
    model[0].eval(), model[1].eval()
    assert training_norms(model) == {"0"}


class Fits(nn.Module):
    """Makes its buffer anew for what is longer than all before it, notes how long that was, and hooks itself once."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self.register_buffer("shift", None)
        self.longest, self.hooked, self.lengths, self.outer = 0, False, [], nn.Linear(4, 4)

    def forward(self, x):
        if not self.hooked:
            self.outer.register_forward_hook(lambda module, args, output: output + 1)
            self.hooked = True
        if len(x) > self.longest:
            self.longest = len(x)
            self.lengths.append(len(x))
            self.register_buffer("scale", torch.full((), float(len(x))), persistent=False)
        if not hasattr(self, "steps"):
            self.steps = torch.arange(4.0)
        if self.shift is None:
            self.shift = torch.ones(4)
        return self.outer(x) * self.scale + self.steps + self.shift


def trace_it(model, x):
    with suppress(TraceError):
        trace(model, x)


@pytest.mark.parametrize("look", [trace_it, lambda model, x: analyze(model, [x])])
def test_what_a_model_makes_while_it_runs_is_made_again(look):
    torch.manual_seed(0)
    model, x = nn.Sequential(Fits(), nn.Linear(4, 2)), torch.randn(5, 4)
    expected = copy.deepcopy(model)(x)
    look(model, x)
    assert (model[0].longest, model[0].hooked, model[0].lengths, model[0].shift) == (0, False, [], None)
    assert not hasattr(model[0], "steps")
    assert not model[0].outer._forward_hooks
    assert model(x).equal(expected)
    look(model, x)
    assert model(x).equal(expected)


class Fixed(dict):
    """What refuses to be changed, as a model's outputs in transformers do."""

    def copy(self):
        raise TypeError

    def clear(self):
        raise TypeError


class Remembers(nn.Linear):
    """Keeps what it has put out in a mapping of a class of its own."""

    last = Fixed()

    def forward(self, x):
        self.last["calls"] = self.last.get("calls", 0) + 1
        self.last = Fixed(output=super().forward(x))
        return self.last["output"]


def test_a_container_of_ones_own_is_put_back_and_not_taken_apart():
    model, x = nn.Sequential(Remembers(4, 4), nn.Linear(4, 2)), torch.randn(5, 4)
    model(x)
    before = model[0].last
    analyze(model, [x])
    assert model[0].last is before
