"""What a model's code does only while it trains counts as much as what it does at inference."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pcn
from graph.coupling import Wired, why
from pcn import LayerRule, PCNConfig
from pcn.graph import channels, trace

VECTORS = (40, 6)
HALF = PCNConfig(rank=1.0, keep_outputs=0.5, skip_larger=False)


def network(between: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> Wired:
    """a (12 channels), something that should pass them on, b."""
    layers = {"a": nn.Linear(6, 12), "b": nn.Linear(12, 5), **parts}
    return Wired(lambda m, x: m.b(between(m, torch.tanh(m.a(x)))), **layers).train()


def in_training(change: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, h: change(m, h) if m.training else h


def plan_of(model: nn.Module, config: PCNConfig = HALF) -> pcn.Plan:
    return pcn.make_plan(model, pcn.analyze(model, [torch.randn(VECTORS)]), config)


STAYING: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "one channel by its number": (lambda m, h: h + h[:, 8:9].mean(), "in train mode"),
    "another order": (lambda m, h: h.flip(1), "aten.flip works across channels in train mode"),
    "a size": (lambda m, h: h.view(-1, 3, 4).tanh().view(h.shape), "in train mode"),
    "calls by width": (lambda m, h: h.tanh() if h.shape[1] == 12 else h, "other calls in train mode"),
    "a number by width": (lambda m, h: h * h.shape[1] ** -0.5, "other numbers in train mode"),
    "a part by number": (lambda m, h: torch.cat([h[:, :3] * 2, h[:, 3:]], 1), "in train mode"),
}


@pytest.mark.parametrize("name", STAYING)
def test_channels_that_training_knows_stay(name: str) -> None:
    change, reason = STAYING[name]
    model = network(in_training(change))
    plan = plan_of(model)
    assert plan.layers["a"].kept_outputs == 12
    assert reason in str(plan.layers["a"].output_reason)
    with pytest.raises(pcn.ConfigError, match="'a' is asked to keep 6 outputs, but none can be dropped"):
        plan_of(model, PCNConfig(rank=1.0, layers={"a": LayerRule(rank=1.0, keep_outputs=6)}, skip_larger=False))


class Auxiliary(nn.Module):
    """Puts out more in train mode: what a second head reads out of the same features, and a feature."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head, self.aux = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 5), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.a(x))
        y = self.head(torch.tanh(self.b(h)))
        return (y, self.aux(h)) if self.training else y


def test_a_head_that_only_training_calls_keeps_what_it_reads() -> None:
    model = Auxiliary()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = pcn.compress_(model, [torch.randn(VECTORS)], HALF, optimizer=optimizer)
    assert plan.layers["a"].kept_outputs == 12
    assert "'aux' reads it and is not transformed" in str(plan.layers["a"].output_reason)
    assert plan.layers["b"].kept_outputs == 6  # nobody but the head reads these
    sum(y.sum() for y in model.train()(torch.randn(VECTORS))).backward()
    optimizer.step()


def test_what_is_put_out_in_training_alone_stays() -> None:
    model = Wired(
        lambda m, x: (m.b(h := m.a(x)), h) if m.training else m.b(m.a(x)), a=nn.Linear(6, 12), b=nn.Linear(12, 5)
    )
    graph = trace(model, torch.randn(VECTORS))
    assert why(graph, "a.weight") == {"its channels are visible in the model's output in train mode"}


def captures(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether training was captured, capture by capture."""
    seen: list[bool] = []
    original = channels.capture

    def noted(*args: Any, training: bool = False) -> Any:
        seen.append(training)
        return original(*args, training=training)

    monkeypatch.setattr(channels, "capture", noted)
    return seen


def test_a_model_whose_code_never_asks_for_the_mode_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = captures(monkeypatch)
    model = network(lambda m, h: m.dropout(m.norm(h)), norm=nn.BatchNorm1d(12), dropout=nn.Dropout())
    assert plan_of(model).layers["a"].kept_outputs == 6
    assert seen == [False]


class Own(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(1) if self.training else x


class Flagged(nn.Module):
    """Has another word for its mode."""

    flips = True

    def train(self, mode: bool = True) -> Any:
        self.flips = mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(1) if self.flips else x


@pytest.mark.parametrize("part", [Own(), Flagged()])
def test_modules_with_a_mode_of_their_own_are_captured_in_both(
    part: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = captures(monkeypatch)
    assert "in train mode" in str(plan_of(network(lambda m, h: m.part(h), part=part)).layers["a"].output_reason)
    assert seen == [False, True]


ALIKE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "dropout": lambda m, h: F.dropout(h, 0.1, m.training),
    "noise": in_training(lambda m, h: h + torch.randn_like(h)),
    "depth": in_training(lambda m, h: h * torch.empty(len(h), 1).bernoulli_(0.5)),
    "depth by timm": in_training(lambda m, h: h * h.new_empty(len(h), 1).bernoulli_(0.5)),
    "a path by chance": in_training(lambda m, h: h.tanh() if random.random() < 0.5 else h),
    "checkpoints": in_training(lambda m, h: torch.utils.checkpoint.checkpoint(torch.tanh, h, use_reentrant=False)),
    "no gradients": in_training(lambda m, h: h * torch.no_grad()(torch.sigmoid)(h)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_training_that_passes_channels_on_lets_them_go(name: str) -> None:
    for _ in range(4):  # by chance, too
        model = network(ALIKE[name])
        plan = pcn.compress_(model, [torch.randn(VECTORS)], HALF)
        assert plan.layers["a"].kept_outputs == 6
        assert plan.layers["a"].note is None
        model.train()(torch.randn(VECTORS)).sum().backward()


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda m, h: -h if h.mean() > 1e9 else h, "data-dependent"), (lambda m, h: h.no_such, "no_such")],
)
def test_where_training_cannot_be_captured_the_plan_says_so(change: Any, said: str) -> None:
    plan = plan_of(network(in_training(change)))
    assert plan.layers["a"].kept_outputs == 6
    assert "whether all of its outputs are needed in train mode is unknown" in str(plan.layers["a"].note)
    assert said in str(plan.layers["a"].note)
    assert "train mode" not in str(plan.layers["b"].note)  # it keeps all of its own


class Changing(nn.Module):
    """Changes in every way while it trains, and draws all kinds of random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 12), nn.BatchNorm1d(12, momentum=0.5), nn.Linear(12, 5)
        self.register_buffer("calls", torch.zeros(()))
        self.code, self.seen, self.last, self.step = nn.Parameter(torch.zeros(5)), list[Any](), None, 0

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.a(x))
        if self.training:
            self.calls += 1
            self.code.data += random.random()
            self.seen.append(h)
            self.last, self.step = h.mean(), self.step + 1
            h = h + torch.rand_like(h)
        return self.b(h) + self.code


def test_tracing_leaves_no_trace() -> None:
    model = Changing().train()
    model.norm.eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    python, numbers = random.getstate(), torch.get_rng_state()
    example = torch.ones(VECTORS)
    trace(model, example)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert random.getstate() == python
    assert torch.equal(torch.get_rng_state(), numbers)
    assert (model.seen, model.last, model.step) == ([], None, 0)


def test_tensors_in_one_piece_of_memory_and_those_with_hooks_keep_their_sizes() -> None:
    model = network(lambda m, h: m.norm(h), norm=nn.BatchNorm1d(12))
    model.norm.weight.data = model.norm.bias.data
    model.register_buffer("empty", torch.empty(0))
    graph = trace(model, torch.randn(VECTORS))
    assert why(graph, "a.weight") == {"'norm.weight' and 'norm.bias' are two tensors in one piece of memory"}
    model = network(lambda m, h: h)
    model.a.bias.register_hook(lambda gradient: gradient * torch.ones(12))
    assert why(trace(model, torch.randn(VECTORS)), "a.weight") == {"a hook on the gradient of 'a.bias' knows its size"}
    assert plan_of(model).layers["a"].kept_outputs == 12
